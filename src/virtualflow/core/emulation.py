"""Devices that this machine does not have, by real waiting: a CPU core that is as slow as another one would be."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from virtualflow.core import profile as profiles
from virtualflow.core.devices import CPU, type_of
from virtualflow.core.profile import Communication, Point, Profile, Workload
from virtualflow.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Emulated:
    """How slow a device is to be.

    *speed* is a part of this machine's core: 0.25 waits until a wave has taken four times the processor time it needed.
    *points* are times of virtual nodes by size, whatever they need here; *communication* is what synchronising adds to
    a step, by the number of devices. *slower* begins at a step of the job.
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
        """How long a step must have taken beyond its waves, on so many devices."""
        return self.update_seconds + Communication(self.communication).seconds(devices, 1)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Emulated:
        lines = {name: fields.get(name, ()) for name in ("points", "communication")}
        pairs = {name: tuple((int(count), float(seconds)) for count, seconds in line) for name, line in lines.items()}
        return cls(**{**fields, **pairs})


def of_type(device_type: str, file: Mapping[str, Any], workload: Workload | None, scale: float) -> Emulated | None:
    """How a type is emulated: by its name (``cpu@0.25``), a device file or a workload's profile; None: it is real."""
    if device_type == CPU:
        return None
    if device_type.startswith(f"{CPU}@"):
        return Emulated(speed=_speed(device_type.removeprefix(f"{CPU}@"), device_type))
    entry = file.get("device", {}).get(device_type)
    if entry is not None:
        return _from_entry(device_type, entry, scale)
    if workload is not None and device_type in workload.profiles:
        return _from_profile(workload.profiles[device_type], scale)
    return None


def read_file(path: Path) -> dict[str, Any]:
    """A device file: ``time_scale``, and a table for each type with ``speed``, ``workload`` or ``profile``."""
    try:
        contents = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read the device file {path}: {error.strerror}") from error
    except ValueError as error:  # of TOML, or of text at all
        raise ConfigError(f"the device file {path} is not TOML: {error}") from error
    if unknown := set(contents) - {"time_scale", "device", "slower"}:
        raise ConfigError(
            f"the device file {path} has {', '.join(sorted(unknown))}; expected time_scale, [device.NAME], [[slower]]"
        )
    _check_values(path, contents)
    return contents


def _check_values(path: Path, contents: Mapping[str, Any]) -> None:
    device, slower = contents.get("device", {}), contents.get("slower", [])
    if not _is_number(contents.get("time_scale", 1.0)):
        raise ConfigError(f"the device file {path}: time_scale must be a number, such as 0.05")
    if not isinstance(device, dict) or not all(isinstance(entry, dict) for entry in device.values()):
        raise ConfigError(f"the device file {path}: a device type is a table, such as [device.V100]")
    if not isinstance(slower, list) or not all(
        isinstance(entry, dict) and _is_number(entry.get("from_step")) and _is_number(entry.get("factor"))
        for entry in slower
    ):
        raise ConfigError(
            f"the device file {path}: each [[slower]] needs device, from_step and factor, such as "
            'device = "old:1", from_step = 40, factor = 3.0'
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def slowed(devices: Sequence[str], by_type: Mapping[str, Emulated], file: Mapping[str, Any]) -> dict[str, Emulated]:
    """Each device's emulation, with the slowdowns that the device file plans for single devices."""
    found = {device: by_type[type_of(device)] for device in devices if type_of(device) in by_type}
    for entry in file.get("slower", []):
        device = str(entry.get("device"))
        if device not in devices:
            raise ConfigError(f"[[slower]] names device {device!r}; the job has {', '.join(devices)}")
        known = found.get(device, Emulated(speed=1.0))
        fields = known.to_json() | {"slower_from": int(entry["from_step"]), "slower": float(entry["factor"])}
        found[device] = Emulated.from_json(fields)
    return found


def _from_entry(device_type: str, entry: Mapping[str, Any], scale: float) -> Emulated:
    if "speed" in entry:
        return Emulated(speed=_speed(str(entry["speed"]), device_type))
    if "profile" in entry:
        return _from_profile(profiles.read(Path(str(entry["profile"]))).profile(device_type), scale)
    if "workload" in entry:
        return _from_profile(profiles.built_in(str(entry["workload"])).profile(device_type), scale)
    raise ConfigError(f'[device.{device_type}] needs speed = 0.25, workload = "resnet50" or profile = "FILE"')


def _from_profile(profile: Profile, scale: float) -> Emulated:
    points = tuple((point.node_size, point.seconds * scale) for point in profile.points)
    return Emulated(points=points, update_seconds=profile.update_seconds * scale)


def _speed(text: str, device_type: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0.0 < speed <= 1.0:
        raise ConfigError(
            f"device type {device_type}: its speed must be a part of this machine's core, above 0 and at most 1"
        )
    return speed
