"""Virtual nodes by the speed of devices: who gets how many, and when it is worth moving some while a job runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping as MappingType
from collections.abc import Sequence
from dataclasses import dataclass, field

from virtualflow.core.devices import type_of
from virtualflow.core.mapping import DeviceId, Mapping
from virtualflow.core.profile import Profile, Workload
from virtualflow.errors import MappingError


@dataclass(slots=True)
class Speeds:
    """How long a virtual node takes on each device: by its type's profile, corrected by what was seen.

    Without profiles a node takes as long as it has examples, until more is seen.
    """

    workload: Workload | None = None
    seen: dict[DeviceId, float] = field(default_factory=dict)  # how many times longer than the profile says

    def seconds(self, device: DeviceId, node_size: int) -> float:
        factor = self.seen.get(device)
        if factor is None:  # as the others
            factor = sorted(self.seen.values())[len(self.seen) // 2] if self.seen else 1.0
        return self._expected(device, node_size) * factor

    def fits(self, device: DeviceId, node_size: int) -> bool:
        """Whether the device's memory holds a node of that size, as far as is known."""
        profile = self._profiles.get(type_of(device))
        return profile is None or profile.may_hold(node_size)

    def learn(self, device: DeviceId, node_sizes: Sequence[int], seconds: float) -> None:
        """A device took *seconds* for virtual nodes of these sizes."""
        expected = sum(self._expected(device, size) for size in node_sizes)
        if expected > 0:
            self.seen[device] = seconds / expected

    def slowest(self, mapping: Mapping, node_sizes: Sequence[int]) -> float:
        """The time of the device that is done last."""
        ends: dict[DeviceId, float] = {}
        for device, size in zip(mapping.devices, node_sizes, strict=True):
            ends[device] = ends.get(device, 0.0) + self.seconds(device, size)
        return max(ends.values())

    def _expected(self, device: DeviceId, node_size: int) -> float:
        profile = self._profiles.get(type_of(device))
        return float(node_size) if profile is None else profile.seconds(node_size)

    @property
    def _profiles(self) -> MappingType[str, Profile]:
        return self.workload.profiles if self.workload is not None else {}


def balanced(mapping: Mapping, devices: Sequence[DeviceId], node_sizes: Sequence[int], speeds: Speeds) -> Mapping:
    """Virtual nodes over *devices* so that all end at about the same time; as few move as that allows.

    The next node always goes to the device that would be done with it first, large ones before small ones: for nodes of
    one size no other mapping is faster. Every device gets one at least, and none that its memory can't hold.
    """
    counts = _targets(mapping, devices, node_sizes, speeds)
    owner: dict[int, DeviceId] = {}
    homeless: dict[int, list[int]] = {}
    for node, (device, size) in enumerate(zip(mapping.devices, node_sizes, strict=True)):
        if counts.get((device, size), 0) > 0:
            counts[device, size] -= 1
            owner[node] = device
        else:
            homeless.setdefault(size, []).append(node)
    for (device, size), count in counts.items():
        for _ in range(count):
            owner[homeless[size].pop(0)] = device
    return Mapping(tuple(owner[node] for node in range(len(node_sizes))))


def _targets(
    mapping: Mapping, devices: Sequence[DeviceId], node_sizes: Sequence[int], speeds: Speeds
) -> dict[tuple[DeviceId, int], int]:
    """How many nodes of each size each device gets."""
    if len(devices) > len(node_sizes):
        raise MappingError(
            f"cannot map {len(node_sizes)} virtual nodes onto {len(devices)} devices: each device needs at least one"
        )
    has = Counter(mapping.devices)
    counts: dict[tuple[DeviceId, int], int] = {}
    ends = dict.fromkeys(devices, 0.0)
    idle = set(devices)
    sizes = sorted(node_sizes, reverse=True)
    for place, size in enumerate(sizes):
        able = [device for device in devices if speeds.fits(device, size)]
        if not able:
            raise MappingError(
                f"no device of this job has the memory for a virtual node of {size} examples; the devices are "
                f"{', '.join(devices)}"
            )
        if len(sizes) - place <= len(idle):  # the rest is for those who have none yet
            able = [device for device in able if device in idle] or able
        device = min(able, key=lambda d: (round(ends[d] + speeds.seconds(d, size), 12), -has[d], devices.index(d)))
        ends[device] += speeds.seconds(device, size)
        idle.discard(device)
        counts[device, size] = counts.get((device, size), 0) + 1
    if idle:
        raise MappingError(f"nothing that fits is left for device {min(idle)}: use fewer devices")
    return counts


@dataclass(slots=True)
class Balancer:
    """Watches how long devices take, and decides when virtual nodes should move.

    It never moves them for a gain that is small or that does not last, and waits after each move until it has seen what
    came of it; a move that brought nothing makes it wait twice as long.
    """

    speeds: Speeds
    gain: float = 0.1  # of the step's computing
    lasting_steps: int = 4
    waiting_steps: int = 8
    _reports: dict[DeviceId, list[float]] = field(default_factory=dict)
    _late: int = 0
    _not_before: int = 0
    _before_move: float | None = None

    def note(self, device: DeviceId, node_sizes: Sequence[int], seconds: float) -> None:
        """What a device took for its virtual nodes of one step."""
        recent = self._reports.setdefault(device, [])
        recent.append(seconds)
        del recent[:-3]
        self.speeds.learn(device, node_sizes, sorted(recent)[len(recent) // 2])

    def forget(self) -> None:
        """The mapping has changed: what was seen of whole steps no longer counts, what is known of devices does."""
        self._reports.clear()
        self._late = 0

    def better(self, step: int, mapping: Mapping, node_sizes: Sequence[int]) -> Mapping | None:
        """Another mapping, if it is time for one."""
        devices = tuple(dict.fromkeys(mapping.devices))
        if any(device not in self._reports for device in devices):
            return None
        now = self.speeds.slowest(mapping, node_sizes)
        if step < self._not_before:
            return None
        if self._before_move is not None:
            self.waiting_steps = 8 if now < self._before_move * (1 - self.gain / 2) else 2 * self.waiting_steps
            self._before_move = None
        new = balanced(mapping, devices, node_sizes, self.speeds)
        if self.speeds.slowest(new, node_sizes) > now * (1 - self.gain):
            self._late = 0
            return None
        self._late += 1
        if self._late < self.lasting_steps:
            return None
        self._before_move = now
        self._not_before = step + self.waiting_steps
        return new
