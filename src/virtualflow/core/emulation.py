"""Devices that this machine does not have, by real waiting: a CPU core that is as slow as another one would be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from virtualflow.core import stage_profile
from virtualflow.core.cell_schedule import FORWARD, CellRun
from virtualflow.core.devices import Pool, type_of
from virtualflow.core.profile import Communication, Point, Profile
from virtualflow.core.stage_profile import StagedProfile
from virtualflow.errors import ConfigError

FORWARD_PART = 1 / 3  # of a whole model's time, where no more is known


@dataclass(frozen=True, slots=True)
class Emulated:
    """How slow a device is to be.

    *speed* is a part of this machine's core: 0.25 waits until a wave has taken four times the processor time it needed.
    *points* are times of virtual nodes by size, on the emulated device; *staged* are those of a model in stages.
    *communication* is what synchronising adds to a step, by the number of devices. *slower* begins at a step of the
    job.
    """

    speed: float | None = None
    points: tuple[tuple[int, float], ...] = ()
    staged: StagedProfile | None = None
    update_seconds: float = 0.0
    communication: tuple[tuple[int, float], ...] = ()
    slower_from: int | None = None
    slower: float = 1.0

    def wave_seconds(self, node_size: int, needed_seconds: float, step: int) -> float:
        """How long a wave must have taken, if it has *needed_seconds* of the processor."""
        if self.points:
            seconds = Profile("emulated", tuple(Point(*point) for point in self.points)).seconds(node_size)
        else:
            seconds = needed_seconds / (self.speed or 1.0)
        return seconds * self._slowed(step)

    def cell_seconds(self, run: CellRun, stages: int, node_size: int, needed_seconds: float, step: int) -> float:
        """The same for a *run* of a cell, of a model in this number of *stages*.

        Of a whole model's time each stage takes an equal part, as ``vf explain`` has it without a profile.
        """
        goes_forward = run.direction == FORWARD
        if self.staged is not None:
            point = self.staged.at(node_size)[run.stage]
            return (point.forward_seconds if goes_forward else point.backward_seconds) * self._slowed(step)
        part = (FORWARD_PART if goes_forward else 1 - FORWARD_PART) / stages
        return self.wave_seconds(node_size, needed_seconds, step) * (part if self.points else 1.0)

    def unit_seconds(self, unit: tuple[int, ...], stages: int) -> float:
        """How long the update of what the stages in *unit* use must have taken."""
        if self.staged is not None:
            return next((known.update_seconds for known in self.staged.units if known.stages == unit), 0.0)
        return self.update_seconds / stages if len(unit) == 1 else 0.0

    def check(self, stages: int | None) -> None:
        """Raise ConfigError if nothing is known of a model in this number of *stages*; None: it is not cut."""
        if self.staged is not None and len(self.staged.stages) != stages:
            cut = "is not cut" if stages is None else f"has {stages}"
            raise ConfigError(
                f"{self.staged.device_type} is emulated by the profile of a model in {len(self.staged.stages)} stages, "
                f"and this one {cut}. Make its profile with `vf profile`, and name that in the device file."
            )

    def _slowed(self, step: int) -> float:
        return self.slower if self.slower_from is not None and step >= self.slower_from else 1.0

    def step_seconds(self, devices: int) -> float:
        """How long a step must have taken beyond its waves, on this number of devices."""
        return self.update_seconds + Communication(self.communication).seconds(devices, 1)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Emulated:
        lines = {name: fields.get(name, ()) for name in ("points", "communication")}
        pairs = {name: tuple((int(count), float(seconds)) for count, seconds in line) for name, line in lines.items()}
        staged = fields.get("staged")
        return cls(**{**fields, **pairs, "staged": stage_profile.profile_of(staged) if staged is not None else None})


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of a job, and those among them that stand for others."""

    pools: tuple[Pool, ...]
    names: tuple[str, ...]
    emulated: dict[str, dict[str, Any]]

    @property
    def are_mixed(self) -> bool:
        return len(self.pools) > 1


def slowed(devices: Sequence[str], by_type: Mapping[str, Emulated], file: Mapping[str, Any]) -> dict[str, Emulated]:
    """Each device's emulation, with the slowdowns that the device file plans for single devices."""
    emulated = {device: by_type[type_of(device)] for device in devices if type_of(device) in by_type}
    for entry in file.get("slower", []):
        device = str(entry.get("device"))
        if device not in devices:
            raise ConfigError(f"[[slower]] names device {device!r}; the job has {', '.join(devices)}")
        known = emulated.get(device, Emulated(speed=1.0))
        fields = known.to_json() | {"slower_from": int(entry["from_step"]), "slower": float(entry["factor"])}
        emulated[device] = Emulated.from_json(fields)
    return emulated
