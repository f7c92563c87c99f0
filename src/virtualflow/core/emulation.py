"""Devices that this machine does not have, by real waiting: a CPU core that is as slow as another one would be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from virtualflow.core.devices import Pool, type_of
from virtualflow.core.profile import Communication, Point, Profile
from virtualflow.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Emulated:
    """How slow a device is to be.

    *speed* is a part of this machine's core: 0.25 waits until a wave has taken four times the processor time it needed.
    *points* are times of virtual nodes by size, on the emulated device; *communication* is what synchronising adds to a
    step, by the number of devices. *slower* begins at a step of the job.
    """

    speed: float | None = None
    points: tuple[tuple[int, float], ...] = ()
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
        return seconds * (self.slower if self.slower_from is not None and step >= self.slower_from else 1.0)

    def step_seconds(self, devices: int) -> float:
        """How long a step must have taken beyond its waves, on this number of devices."""
        return self.update_seconds + Communication(self.communication).seconds(devices, 1)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Emulated:
        lines = {name: fields.get(name, ()) for name in ("points", "communication")}
        pairs = {name: tuple((int(count), float(seconds)) for count, seconds in line) for name, line in lines.items()}
        return cls(**{**fields, **pairs})


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
