"""What is known of a model that is cut into stages: time and memory of each stage by node size and device type."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from virtualflow.core.profile import BEYOND, LARGEST, MEMORY
from virtualflow.errors import ProfileError

STAGES_FORMAT, STAGES_VERSION = "virtualflow stage profile", 1


@dataclass(frozen=True, slots=True)
class StagePoint:
    """One stage for one virtual node of *node_size* examples."""

    node_size: int
    forward_seconds: float
    backward_seconds: float
    kept_bytes: int  # between the two
    working_bytes: int  # more than that during the backward, which makes activations anew if they were not kept
    crossing_bytes: int  # that the next stage gets


@dataclass(frozen=True, slots=True)
class UnitFigures:
    """The tensors that the same stages use, and their update."""

    stages: tuple[int, ...]
    weight_bytes: int
    optimizer_bytes: int
    sum_bytes: int
    update_seconds: float


@dataclass(frozen=True, slots=True)
class Link:
    """What a message between two devices costs."""

    latency_seconds: float = 0.0
    bytes_per_second: float = math.inf

    def __post_init__(self) -> None:
        if not (0 <= self.latency_seconds < math.inf and self.bytes_per_second > 0):
            raise ProfileError(
                f"a message can't take {self.latency_seconds} seconds at {self.bytes_per_second} bytes a second"
            )

    def seconds(self, size: float) -> float:
        return self.latency_seconds + size / self.bytes_per_second


@dataclass(frozen=True, slots=True)
class StagedProfile:
    """One model in stages on one device type."""

    device_type: str
    stages: tuple[tuple[StagePoint, ...], ...]  # of each stage its points, all by the same node sizes
    units: tuple[UnitFigures, ...]
    memory_bytes: int | None = None  # of a device; None: not limited, as far as is known
    facts: Mapping[str, Any] = field(default_factory=dict)
    ended_by: str = LARGEST  # why there is no larger point

    def __post_init__(self) -> None:
        sizes = [[point.node_size for point in points] for points in self.stages]
        times = [
            seconds
            for points in self.stages
            for point in points
            for seconds in (point.forward_seconds, point.backward_seconds)
        ]
        if not sizes or not sizes[0] or any(other != sorted(set(sizes[0])) for other in sizes) or sizes[0][0] < 1:
            raise ProfileError(
                f"the stage profile of {self.device_type} is invalid: each stage needs points of the same growing node "
                "sizes"
            )
        if not all(0 < seconds < math.inf for seconds in times) or self.ended_by not in BEYOND:
            raise ProfileError(f"the stage profile of {self.device_type} is invalid: a time or its end is impossible")
        if {stage for unit in self.units for stage in unit.stages} - set(range(len(self.stages))):
            raise ProfileError(f"the stage profile of {self.device_type} is invalid: a unit names a stage too many")

    @property
    def node_sizes(self) -> tuple[int, ...]:
        return tuple(point.node_size for point in self.stages[0])

    def at(self, node_size: int) -> tuple[StagePoint, ...]:
        """The stages at a node size: as measured, or on the line through the two nearest points.

        Raises ProfileError where it is known not to fit.
        """
        if self.ended_by == MEMORY and node_size > self.node_sizes[-1]:
            raise ProfileError(
                f"virtual nodes of {node_size} examples do not fit on {self.device_type}, not even those of one stage: "
                f"its profile ends at {self.node_sizes[-1]}. Take more virtual nodes, or more stages."
            )
        return tuple(_point_at(points, node_size) for points in self.stages)

    def scaled(self, factor: float) -> StagedProfile:
        """The same on a device that takes *factor* times as long."""
        stages = tuple(
            tuple(
                replace(
                    point,
                    forward_seconds=factor * point.forward_seconds,
                    backward_seconds=factor * point.backward_seconds,
                )
                for point in points
            )
            for points in self.stages
        )
        units = tuple(replace(unit, update_seconds=factor * unit.update_seconds) for unit in self.units)
        return replace(self, stages=stages, units=units)


@dataclass(frozen=True, slots=True)
class StagedWorkload:
    """A model in stages and its data: a profile for each device type, and what messages cost."""

    name: str
    profiles: Mapping[str, StagedProfile]
    link: Link = Link()

    def profile(self, device_type: str) -> StagedProfile:
        if device_type not in self.profiles:
            known = ", ".join(sorted(self.profiles)) or "none"
            raise ProfileError(
                f"there is no stage profile of {self.name} on device type {device_type}; known types: {known}. Make "
                f"one with `vf profile SCRIPT --device-type {device_type}` on a machine that has such a device."
            )
        return self.profiles[device_type]


def to_json(workload: StagedWorkload) -> dict[str, Any]:
    link = workload.link
    return {
        "format": STAGES_FORMAT,
        "version": STAGES_VERSION,
        "workload": workload.name,
        "profiles": [asdict(profile) for profile in workload.profiles.values()],
        "link": {
            "latency_seconds": link.latency_seconds,
            "bytes_per_second": link.bytes_per_second if math.isfinite(link.bytes_per_second) else None,
        },
    }


def is_staged(contents: Any) -> bool:
    """Whether a profile's file is that of a model in stages."""
    return isinstance(contents, dict) and contents.get("format") == STAGES_FORMAT


def from_json(contents: Any, where: str) -> StagedWorkload:
    """The workload in a file that *where* names."""
    try:
        if contents["version"] != STAGES_VERSION:
            raise ProfileError(
                f"{where} has version {contents['version']}; this VirtualFlow reads {STAGES_VERSION}. Make it again "
                "with `vf profile`."
            )
        profiles = {entry["device_type"]: profile_of(entry) for entry in contents["profiles"]}
        given = contents["link"]
        link = Link(given["latency_seconds"], given["bytes_per_second"] or math.inf)
        return StagedWorkload(str(contents["workload"]), profiles, link)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProfileError(
            f"{where} is damaged ({type(error).__name__}: {error}). Make it again with `vf profile`."
        ) from error


def merged(workloads: Sequence[StagedWorkload]) -> StagedWorkload:
    """Profiles of several device types together; the slowest link counts for all.

    Raises ProfileError if they are of models that are cut in different ways.
    """
    profiles = {name: profile for workload in workloads for name, profile in workload.profiles.items()}
    cuts = {(len(profile.stages), tuple(unit.stages for unit in profile.units)) for profile in profiles.values()}
    if len(cuts) > 1:
        raise ProfileError(
            f"the profiles of {', '.join(sorted(profiles))} are of models that are cut in different ways. Make them "
            "again with `vf profile`, for all types with one script."
        )
    link = Link(
        max(workload.link.latency_seconds for workload in workloads),
        min(workload.link.bytes_per_second for workload in workloads),
    )
    return StagedWorkload(workloads[-1].name, profiles, link)


def profile_of(entry: Mapping[str, Any]) -> StagedProfile:
    """The profile whose fields are *entry*."""
    stages = tuple(tuple(StagePoint(**point) for point in points) for points in entry["stages"])
    units = tuple(UnitFigures(**{**unit, "stages": tuple(unit["stages"])}) for unit in entry["units"])
    return StagedProfile(**{**entry, "stages": stages, "units": units})


def _point_at(points: Sequence[StagePoint], node_size: int) -> StagePoint:
    for point in points:
        if point.node_size == node_size:
            return point
    if len(points) == 1:
        low, high = points[0], _scaled(points[0], 2.0)
    else:
        place = next((place for place, point in enumerate(points) if point.node_size > node_size), len(points) - 1)
        low, high = points[max(place, 1) - 1], points[max(place, 1)]
    part = (node_size - low.node_size) / (high.node_size - low.node_size)
    fastest = max(point.node_size / (point.forward_seconds + point.backward_seconds) for point in points)

    def on_line(name: str, least: float) -> float:
        start, end = getattr(low, name), getattr(high, name)
        return max(float(start + part * (end - start)), least)

    # As with whole models: a line through noise never promises a rate that nobody has seen.
    forward, backward = on_line("forward_seconds", 1e-12), on_line("backward_seconds", 1e-12)
    stretched = max(1.0, node_size / fastest / (forward + backward))
    kept, working, crossing = (round(on_line(name, 0)) for name in ("kept_bytes", "working_bytes", "crossing_bytes"))
    return StagePoint(node_size, forward * stretched, backward * stretched, kept, working, crossing)


def _scaled(point: StagePoint, factor: float) -> StagePoint:
    fields = {name: value * factor for name, value in asdict(point).items()}
    return StagePoint(**fields)
