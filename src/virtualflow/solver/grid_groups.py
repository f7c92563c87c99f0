"""Groups of stages, each on as many devices of one type as it needs: candidates whose devices belong to no one line.

A stage that takes as long as two others gets two devices, which take turns with the virtual nodes, and they get one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from virtualflow.core.cells import Cells
from virtualflow.core.mapping import DeviceId
from virtualflow.solver.grid_costs import GridCosts
from virtualflow.solver.grid_lines import KnownLines

HALVINGS = 12  # how exactly the shortest time is sought


@dataclass(frozen=True, slots=True)
class StageGroup:
    """Stages from *first* to before *last*, on a number of devices of one type."""

    device_type: str
    first: int
    last: int
    devices: int


@dataclass(frozen=True, slots=True)
class _Suffix:
    """The groups from a stage to the end, with the fewest devices of the type that is looked at."""

    used: int
    groups: tuple[StageGroup, ...]


def grouped(
    counts: Mapping[str, int], lines: KnownLines, costs: GridCosts, kind: str, nodes: int, least: float
) -> Iterator[tuple[float, tuple[StageGroup, ...]]]:
    """For each order of the types along the model, the groups whose slowest device is done first, and when at best.

    None is sought below *least*. There is nothing for an order in which the stages do not fit.
    """
    names = list(counts)
    orders = list(itertools.permutations(names)) if len(names) <= 3 else [tuple(names), tuple(reversed(names))]
    division = _Division(counts, lines, costs, kind, nodes)
    for order in orders:
        low, high = least, nodes * sum(max(times) for times in zip(*costs.both.values(), strict=True))
        if (found := division.within(order, math.inf)) is None:
            continue
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if (better := division.within(order, middle)) is None:
                low = middle
            else:
                high, found = middle, better
        yield high, found


def cells_of(groups: Sequence[StageGroup], names: Mapping[str, Sequence[DeviceId]], nodes: int) -> Cells:
    """The grid in which the devices of each group take turns."""
    free = {name: iter(devices) for name, devices in names.items()}
    owners = [(tuple(itertools.islice(free[group.device_type], group.devices)), group) for group in groups]
    return Cells(
        tuple(
            tuple(devices[node % len(devices)] for devices, group in owners for _ in range(group.first, group.last))
            for node in range(nodes)
        )
    )


class _Division:
    """Divides the stages into groups."""

    def __init__(self, counts: Mapping[str, int], lines: KnownLines, costs: GridCosts, kind: str, nodes: int) -> None:
        self._counts, self._lines, self._costs, self._kind, self._nodes = counts, lines, costs, kind, nodes
        self._before = {name: (0.0, *itertools.accumulate(times)) for name, times in costs.both.items()}
        fastest = (min(times) for times in zip(*costs.both.values(), strict=True))
        self._start = (0.0, *itertools.accumulate(fastest))

    def within(self, order: Sequence[str], limit: float) -> tuple[StageGroup, ...] | None:
        """Groups of the types in this *order*, each done within *limit*; None if there are not enough devices."""
        found: dict[int, _Suffix] = {self._costs.stages: _Suffix(0, ())}
        for name in reversed(order):
            found = {stage: _Suffix(0, suffix.groups) for stage, suffix in found.items()}
            for first in range(self._costs.stages - 1, -1, -1):
                for suffix in self._begun_at(first, name, found, limit):
                    known = found.get(first)
                    if known is None or (suffix.used, len(suffix.groups)) < (known.used, len(known.groups)):
                        found[first] = suffix
        return found[0].groups if 0 in found else None

    def _begun_at(self, first: int, name: str, found: Mapping[int, _Suffix], limit: float) -> Iterator[_Suffix]:
        for last in range(first + 1, self._costs.stages + 1):
            devices = self._devices(name, first, last, limit)
            if devices is None:
                return
            rest = found.get(last)
            if rest is None or rest.used + devices > self._counts[name]:
                continue
            if self._has_room(name, first, last, len(rest.groups) + 1, devices):
                yield _Suffix(rest.used + devices, (StageGroup(name, first, last, devices), *rest.groups))

    def _devices(self, name: str, first: int, last: int, limit: float) -> int | None:
        """How many devices have done these stages for all virtual nodes within *limit*; None if none have."""
        seconds = self._before[name][last] - self._before[name][first]
        left, sums, link = limit - self._start[first], self._lines.sums(first, last), self._costs.link
        devices = 1
        while devices <= min(self._counts[name], self._nodes):
            reducing = 2 * (devices - 1) * link.latency_seconds
            reducing += 2 * sums * (devices - 1) / devices / link.bytes_per_second
            if -(-self._nodes // devices) * seconds + reducing <= left:
                return devices
            each = math.floor((left - reducing) / seconds)
            if each < 1:
                return None
            devices = max(devices + 1, -(-self._nodes // each))
        return None

    def _has_room(self, name: str, first: int, last: int, to_end: int, devices: int) -> bool:
        flying = -(-self._nodes // devices)
        if self._kind == "1f1b":
            flying = min(flying, to_end)
        return self._lines.bytes(first, last, flying) <= self._costs.types[name].memory_bytes
