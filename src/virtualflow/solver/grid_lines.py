"""Lines: devices that run all stages one after another. One device alone is a line too, as in data parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from virtualflow.core.cells import Cells
from virtualflow.solver.grid_costs import GridCosts
from virtualflow.solver.grid_forecast import CellsTime, cell_times

TIGHT = 1e-3  # of the bottleneck: how exactly the best cut is sought


@dataclass(frozen=True, slots=True)
class Line:
    """Of each device its type and how many stages it runs, in their order."""

    parts: tuple[tuple[str, int], ...]

    @property
    def types(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.parts)


@dataclass(frozen=True, slots=True)
class LinePace:
    """How fast a line is: the time of its slowest device for a virtual node, and of one that passes through alone."""

    bottleneck: float
    way: float
    sums_bytes: int  # the most that one of its devices sums
    update: float

    def seconds(self, nodes: int) -> float:
        """About how long *nodes* virtual nodes take."""
        return self.way + (nodes - 1) * self.bottleneck


class KnownLines:
    """The lines for one job: their best cuts, how fast they are, and their exact times."""

    def __init__(self, costs: GridCosts, kind: str, virtual_nodes: int, *, bounded: bool = True) -> None:
        """Without *bounded*, memory does not count."""
        self._costs, self._kind, self._nodes, self._bounded = costs, kind, virtual_nodes, bounded
        self._before = {name: (0.0, *accumulate(times)) for name, times in costs.both.items()}
        self._kept = (0, *accumulate(costs.kept))
        self.best = lru_cache(maxsize=None)(self._best)
        self.pace = lru_cache(maxsize=None)(self._pace)
        self.times = lru_cache(maxsize=None)(self._times)
        self._of_stage = [
            [number for number, unit in enumerate(costs.units) if stage in unit.stages] for stage in range(costs.stages)
        ]
        self._units = lru_cache(maxsize=None)(self._units_between)
        self._state = lru_cache(maxsize=None)(self._state_bytes)
        self.simulated = 0  # runs of cells so far

    def _best(self, types: tuple[str, ...], nodes: int) -> Line | None:
        """The cut for devices of these *types* whose slowest one is fastest; None if the stages do not fit.

        *nodes* are those that the line gets, at most.
        """
        high = max(self._before[name][-1] for name in types)
        if (found := self._cut(types, high, nodes)) is None:
            return None
        low, high = 0.0, self.pace(found).bottleneck
        while high - low > TIGHT * high:
            middle = (low + high) / 2
            if (better := self._cut(types, middle, nodes)) is None:
                low = middle
            else:
                high, found = self.pace(better).bottleneck, better
        return found

    def _cut(self, types: Sequence[str], limit: float, nodes: int) -> Line | None:
        """Each device takes as many stages as it finishes within *limit* and can hold."""
        parts, first, stages = [], 0, self._costs.stages
        for place, name in enumerate(types):
            last = first
            most = stages - (len(types) - place - 1)  # one at least is left for each of the others
            flying = min(nodes, len(types) - place) if self._kind == "1f1b" else nodes
            before = self._before[name]
            while last < most and before[last + 1] - before[first] <= limit * (1 + 1e-12):
                if self._bounded and self.bytes(first, last + 1, flying) > self._costs.types[name].memory_bytes:
                    break
                last += 1
            if last == first:
                return None
            parts.append((name, last - first))
            first = last
        return Line(tuple(parts)) if first == stages else None

    def bytes(self, first: int, last: int, flying: int) -> int:
        """What a device needs that runs the stages from *first* to before *last*, of *flying* virtual nodes at once."""
        state, weights = self._state(first, last)
        working = max(self._costs.working[first:last])
        return state + max(flying * (self._kept[last] - self._kept[first]) + working, weights)

    def sums(self, first: int, last: int) -> int:
        """The bytes that are summed for the stages from *first* to before *last*."""
        return sum(self._costs.units[number].sums for number in self._units(first, last))

    def _state_bytes(self, first: int, last: int) -> tuple[int, int]:
        held = [self._costs.units[number] for number in self._units(first, last)]
        return sum(unit.weight + unit.optimizer + unit.sums for unit in held), sum(unit.weight for unit in held)

    def _units_between(self, first: int, last: int) -> tuple[int, ...]:
        return tuple(dict.fromkeys(number for stage in range(first, last) for number in self._of_stage[stage]))

    def _pace(self, line: Line) -> LinePace:
        first, way, bottleneck, sums, update = 0, 0.0, 0.0, 0, 0.0
        for name, count in line.parts:
            last, times = first + count, self._before[name]
            seconds = times[last] - times[first]
            bottleneck, way = max(bottleneck, seconds), way + seconds
            if first:
                way += 2 * self._costs.messages[first - 1]
            held = self._units(first, last)
            sums = max(sums, self.sums(first, last))
            update = max(update, sum(self._costs.types[name].update[number] for number in held))
            first = last
        return LinePace(bottleneck, way, sums, update)

    def _times(self, line: Line, nodes: int) -> tuple[CellsTime, ...]:
        """What the cells of each device come to, if the line gets *nodes* virtual nodes."""
        self.simulated += 2 * nodes * len(line.parts)
        # Names that are told apart only here; what counts of them is the type.
        names = [f"{name}:{place}" for place, name in enumerate(line.types)]
        route = tuple(name for name, (_, count) in zip(names, line.parts, strict=True) for _ in range(count))
        times = cell_times(Cells((route,) * nodes), self._costs, self._kind)
        return tuple(times[name] for name in names)
