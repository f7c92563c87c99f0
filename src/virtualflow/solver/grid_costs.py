"""What a grid of cells is judged by: the stages' figures at one node size, by device type."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from virtualflow.core.cell_times import BothWays
from virtualflow.core.devices import type_of
from virtualflow.core.mapping import DeviceId
from virtualflow.core.stage_profile import Link, StagedProfile, StagedWorkload, StagePoint

FREE = Link()  # messages that take no time


@dataclass(frozen=True, slots=True)
class TypeCosts(BothWays):
    """One device type: how long each stage takes, how long each unit's update, and its memory."""

    update: tuple[float, ...]  # by unit
    memory_bytes: float = math.inf


@dataclass(frozen=True, slots=True)
class UnitBytes:
    """The tensors that the same stages use."""

    stages: tuple[int, ...]
    weight: int
    optimizer: int
    sums: int


@dataclass(frozen=True)
class GridCosts:
    """The costs of cells, messages and units; the bytes are the same on every type."""

    types: Mapping[str, TypeCosts]
    kept: tuple[int, ...]  # by stage: bytes from the forward to the backward
    working: tuple[int, ...]
    crossing: tuple[int, ...]
    units: tuple[UnitBytes, ...]
    link: Link = FREE

    @property
    def stages(self) -> int:
        return len(self.kept)

    def of(self, device: DeviceId) -> TypeCosts:
        return self.types[type_of(device)]

    @cached_property
    def messages(self) -> tuple[float, ...]:
        """By stage: how long a message to the next one takes, or back."""
        return tuple(self.link.seconds(size) for size in self.crossing)

    @cached_property
    def both(self) -> dict[str, tuple[float, ...]]:
        """By type, how long each stage takes there and back."""
        return {
            name: tuple(f + b for f, b in zip(costs.forward, costs.backward, strict=True))
            for name, costs in self.types.items()
        }

    def with_memory(self, memory: Mapping[str, float]) -> GridCosts:
        """The same with other memories, by type."""
        types = {
            name: replace(costs, memory_bytes=memory.get(name, costs.memory_bytes))
            for name, costs in self.types.items()
        }
        return replace(self, types=types)


def costs_at(workload: StagedWorkload, types: Iterable[str], node_size: int) -> GridCosts:
    """The costs of virtual nodes of *node_size* examples on devices of *types*."""
    profiles = {name: workload.profile(name) for name in types}
    points = {name: profile.at(node_size) for name, profile in profiles.items()}
    first = next(iter(profiles))
    return GridCosts(
        {name: _type_costs(profile, points[name]) for name, profile in profiles.items()},
        tuple(max(at[stage].kept_bytes for at in points.values()) for stage in range(len(points[first]))),
        tuple(max(at[stage].working_bytes for at in points.values()) for stage in range(len(points[first]))),
        tuple(max(at[stage].crossing_bytes for at in points.values()) for stage in range(len(points[first]))),
        tuple(
            UnitBytes(unit.stages, unit.weight_bytes, unit.optimizer_bytes, unit.sum_bytes)
            for unit in profiles[first].units
        ),
        workload.link,
    )


def _type_costs(profile: StagedProfile, points: tuple[StagePoint, ...]) -> TypeCosts:
    return TypeCosts(
        tuple(point.forward_seconds for point in points),
        tuple(point.backward_seconds for point in points),
        tuple(unit.update_seconds for unit in profile.units),
        math.inf if profile.memory_bytes is None else profile.memory_bytes,
    )


def equal_costs(stages: int, types: Iterable[str]) -> GridCosts:
    """Without a profile: a backward takes twice as long as its forward; activations and messages are counted."""
    times = TypeCosts((1.0,) * stages, (2.0,) * stages, ())
    return GridCosts(dict.fromkeys(types, times), (1,) * stages, (0,) * stages, (1,) * stages, ())
