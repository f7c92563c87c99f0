"""What is known of a workload's speed: step time over node size by device type, and what communication costs."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from virtualflow.errors import ProfileError

FORMAT, VERSION = "virtualflow profile", 1
MEMORY, TIME, LARGEST, PACE = "memory", "time", "largest", "pace"  # what ends a profile
BEYOND = {
    MEMORY: "larger ones do not fit into its memory",
    TIME: "not measured beyond, for want of time; more --minutes give more",
    LARGEST: "not measured beyond; a larger --largest gives more",
    PACE: "not measured beyond: this machine is too slow to stand for such a device there",
}


@dataclass(frozen=True, slots=True)
class Point:
    """One virtual node of *node_size* examples takes *seconds*, most likely between *low* and *high*.

    *loading_seconds* is what loading its examples takes; it is a part of *seconds* only where nothing is fetched ahead.
    """

    node_size: int
    seconds: float
    low: float | None = None
    high: float | None = None
    peak_bytes: int | None = None
    loading_seconds: float | None = None

    @property
    def examples_per_second(self) -> float:
        return self.node_size / self.seconds


@dataclass(frozen=True, slots=True)
class Profile:
    """One workload on one device type."""

    device_type: str
    points: tuple[Point, ...]  # by node size
    update_seconds: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    ended_by: str = MEMORY  # why there is no larger point: only memory is a limit
    void: str = ""  # why its figures must not be used

    def __post_init__(self) -> None:
        sizes = [point.node_size for point in self.points]
        if (
            not sizes
            or sizes != sorted(set(sizes))
            or sizes[0] < 1
            or not all(0 < p.seconds < math.inf for p in self.points)
        ):
            raise ProfileError(
                f"the profile of {self.device_type} is invalid: it needs points of growing node size, each with a time"
            )
        if not 0 <= self.update_seconds < math.inf:
            raise ProfileError(
                f"the profile of {self.device_type} is invalid: its update takes {self.update_seconds} seconds"
            )
        if self.ended_by not in BEYOND:
            raise ProfileError(
                f"the profile of {self.device_type} is invalid: it was ended by {self.ended_by!r}, which is none of "
                f"{', '.join(BEYOND)}"
            )

    @property
    def largest(self) -> int:
        return self.points[-1].node_size

    def may_hold(self, node_size: int) -> bool:
        """Whether a virtual node of that size fits, as far as is known: what was not measured may."""
        return node_size <= self.largest or self.ended_by != MEMORY

    def is_measured(self, node_size: int) -> bool:
        return any(point.node_size == node_size for point in self.points)

    def seconds(self, node_size: int) -> float:
        """Of one virtual node: as measured, or on the line through the two nearest points."""
        sizes = [point.node_size for point in self.points]
        place = bisect.bisect_left(sizes, node_size)
        if place < len(sizes) and sizes[place] == node_size:
            return self.points[place].seconds
        if len(sizes) == 1:
            return self.points[0].seconds * node_size / sizes[0]
        low, high = self.points[max(0, min(place, len(sizes) - 1) - 1) :][:2]
        slope = (high.seconds - low.seconds) / (high.node_size - low.node_size)
        guess = low.seconds + slope * (node_size - low.node_size)
        # A line through noise may fall below what is possible: never faster per example than the best seen.
        fastest = max(point.examples_per_second for point in self.points)
        return max(guess, node_size / fastest)


@dataclass(frozen=True, slots=True)
class Communication:
    """What synchronising gradients adds to a step: a part for the devices of a machine, and one for the machines.

    Each is a line through what was measured, by count, and grows: with more of them nothing gets cheaper.
    """

    by_devices: tuple[tuple[int, float], ...] = ()
    by_machines: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        for count, seconds in (*self.by_devices, *self.by_machines):
            if not 0 <= seconds < math.inf:
                raise ProfileError(f"communication between {count} can't take {seconds} seconds")

    def seconds(self, devices: int, machines: int) -> float:
        """With at most *devices* on each of the *machines*."""
        return _on_line(self.by_devices, devices) + _on_line(self.by_machines, machines)


@dataclass(frozen=True, slots=True)
class Workload:
    """A model and its data: a profile for each device type, and its communication."""

    name: str
    profiles: Mapping[str, Profile]
    communication: Communication = Communication()

    def profile(self, device_type: str) -> Profile:
        if device_type not in self.profiles:
            known = ", ".join(sorted(self.profiles)) or "none"
            raise ProfileError(
                f"there is no profile of {self.name} on device type {device_type}; known types: {known}. Make one with "
                f"`vf profile SCRIPT --device-type {device_type}` on a machine that has such a device."
            )
        profile = self.profiles[device_type]
        if profile.void:
            raise ProfileError(
                f"the profile of {self.name} on device type {device_type} is void: {profile.void}. Make it again with "
                f"`vf profile SCRIPT --device-type {device_type}`."
            )
        return profile


def _on_line(points: Sequence[tuple[int, float]], count: int) -> float:
    if count <= 1 or not points:
        return 0.0
    known = [(1, 0.0), *points]
    # What was measured with more of them was not less: noise must not make a larger job look cheaper.
    costs = [max(cost for _, cost in known[: place + 1]) for place in range(len(known))]
    counts = [n for n, _ in known]
    place = min(bisect.bisect_left(counts, count), len(counts) - 1)
    if counts[place] == count:
        return costs[place]
    slope = (costs[place] - costs[place - 1]) / (counts[place] - counts[place - 1])
    return costs[place - 1] + slope * (count - counts[place - 1])


def to_json(workload: Workload) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "workload": workload.name,
        "profiles": [asdict(profile) for profile in workload.profiles.values()],
        "communication": {
            "by_devices": {str(count): seconds for count, seconds in workload.communication.by_devices},
            "by_machines": {str(count): seconds for count, seconds in workload.communication.by_machines},
        },
    }


def from_json(contents: Any, where: str) -> Workload:
    """The workload in a file that *where* names; its own words if it is not one."""
    try:
        if contents["format"] != FORMAT:
            raise ProfileError(f"{where} is not a profile: its format is {contents['format']!r}")
        if contents["version"] != VERSION:
            raise ProfileError(
                f"{where} has version {contents['version']}; this VirtualFlow reads {VERSION}. Make it again with "
                "`vf profile`."
            )
        profiles = {}
        for entry in contents["profiles"]:
            points = tuple(Point(**point) for point in entry["points"])
            profiles[entry["device_type"]] = Profile(**{**_fields_of_facts(entry), **entry, "points": points})
        costs = contents["communication"]
        communication = Communication(
            *(
                tuple(sorted((int(count), float(seconds)) for count, seconds in costs[key].items()))
                for key in ("by_devices", "by_machines")
            )
        )
        return Workload(str(contents["workload"]), profiles, communication)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProfileError(
            f"{where} is damaged ({type(error).__name__}: {error}). Make it again with `vf profile`."
        ) from error


def _fields_of_facts(entry: Mapping[str, Any]) -> dict[str, str]:
    """Why a profile ended, and whether it is void, where only its facts say so."""
    facts, fields = entry.get("facts", {}), {}
    if not facts.get("memory_was_full", True):
        fields["ended_by"] = TIME
    if overran := facts.get("overran_waves"):
        fields["void"] = f"{overran} waves took longer than on the device that they emulate"
    return fields


def merged(workloads: Sequence[Workload]) -> Workload:
    """Profiles of several device types together; of two for the same type the later one counts."""
    profiles = {name: profile for workload in workloads for name, profile in workload.profiles.items()}
    costs = [workload.communication for workload in workloads]

    def longest(lines: list[tuple[tuple[int, float], ...]]) -> tuple[tuple[int, float], ...]:
        return max(lines, key=len, default=())

    communication = Communication(longest([c.by_devices for c in costs]), longest([c.by_machines for c in costs]))
    return Workload(workloads[-1].name, profiles, communication)
