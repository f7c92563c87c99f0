"""Devices by type and by machine, as a person writes them: ``V100:1+1,P100:4+4``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from virtualflow.errors import ConfigError

CPU = "cpu"
LONGEST_NAME = 60  # of a device, in characters


@dataclass(frozen=True, slots=True)
class Pool:
    """All devices of one type: how many each machine has, the largest machine first."""

    device_type: str
    machines: tuple[int, ...]

    @property
    def count(self) -> int:
        return sum(self.machines)

    def machines_for(self, devices: int) -> int:
        """The smallest number of machines that have that many devices together."""
        left, used = devices, 0
        while left > 0:
            left -= self.machines[used]
            used += 1
        return used

    def __str__(self) -> str:
        return f"{self.device_type}:{'+'.join(str(count) for count in self.machines)}"


def is_number(text: str) -> bool:
    """Whether it is a number from 0 on, as people write it: a raised two is a digit to Python, and no number."""
    return text.isascii() and text.isdigit() and len(text) < 10


def parse_pools(text: str) -> tuple[Pool, ...]:
    """``V100:2`` is two on one machine, ``P100:4+4`` four on each of two; a plain number is that many CPU devices."""
    if is_number(text):
        text = f"{CPU}:{text}"
    pools = []
    for part in text.split(","):
        name, separator, counts = part.strip().rpartition(":")
        if not separator or not name or not re.fullmatch(r"[0-9]+(\+[0-9]+)*", counts):
            raise ConfigError(
                f"--devices {part.strip()!r}: expected TYPE:COUNT, such as V100:2, or P100:4+4 for two machines with "
                "four each, with commas between types; or a number of CPU devices, 1 or more."
            )
        machines = tuple(sorted((int(count) for count in counts.split("+")), reverse=True))
        if machines[-1] == 0:
            raise ConfigError(f"--devices {part.strip()!r}: leave out machines without devices")
        pools.append(Pool(name, machines))
    twice = {pool.device_type for pool in pools if sum(other.device_type == pool.device_type for other in pools) > 1}
    if twice:
        raise ConfigError(f"--devices names {min(twice)} twice: write {min(twice)}:2+2 for two machines with two each")
    return tuple(pools)


def names_of(pools: Sequence[Pool]) -> tuple[str, ...]:
    """A name for each device: ``V100:0``, ``V100:1``, ...; CPU devices have just a number."""
    return tuple(
        str(number) if pool.device_type == CPU else f"{pool.device_type}:{number}"
        for pool in pools
        for number in range(pool.count)
    )


def check_names(devices: Sequence[str]) -> None:
    """Raise ConfigError unless these can be devices: their names are printed, and become those of files."""
    for name in devices:
        if not name.isprintable() or not 0 < len(name) <= LONGEST_NAME:
            raise ConfigError(f"{name[:LONGEST_NAME]!r} is no device's name. Expected a number, or TYPE:NUMBER.")
    if len(set(devices)) < len(devices):
        raise ConfigError(f"a device is named twice: {', '.join(devices)}")


def type_of(device: str) -> str:
    """The type of a device by its name. Workers from other launchers (``host/1``) count as plain CPU devices."""
    return device.rpartition(":")[0] or CPU
