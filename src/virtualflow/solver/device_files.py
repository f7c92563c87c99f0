"""What a device type that this machine does not have is like: from its name, a device file, or a profile."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from virtualflow.core.devices import CPU
from virtualflow.core.emulation import Emulated
from virtualflow.core.profile import Profile, Workload
from virtualflow.core.sizes import parse_size
from virtualflow.errors import ConfigError
from virtualflow.solver import profile_files


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


def memory_by_type(file: Mapping[str, Any]) -> dict[str, int]:
    """The bytes of a device, of the types of which a device file says so."""
    devices = file.get("device", {})
    return {
        name: parse_size(entry["memory"], f"[device.{name}] memory")
        for name, entry in devices.items()
        if "memory" in entry
    }


def read_file(path: Path) -> dict[str, Any]:
    """A device file: ``time_scale``, and for each type ``memory``, and ``speed``, ``workload`` or ``profile``."""
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
    if not all(isinstance(entry.get("memory", ""), str) for entry in device.values()):
        raise ConfigError(f'the device file {path}: a memory is a text, such as memory = "16GB"')
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


def _from_entry(device_type: str, entry: Mapping[str, Any], scale: float) -> Emulated | None:
    if entry.keys() == {"memory"}:
        return None
    if "speed" in entry:
        return Emulated(speed=_speed(str(entry["speed"]), device_type))
    if "profile" in entry:
        path = Path(str(entry["profile"]))
        if profile_files.is_staged(path):
            return Emulated(staged=profile_files.read_staged(path).profile(device_type).scaled(scale))
        return _from_profile(profile_files.read(path).profile(device_type), scale)
    if "workload" in entry:
        return _from_profile(profile_files.built_in(str(entry["workload"])).profile(device_type), scale)
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
