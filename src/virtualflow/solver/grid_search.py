"""The fastest grid of cells for a model in stages on given devices: pipelines, data parallelism, and mixtures of both.

Candidates are teams of lines, each with its best cut, and groups of stages on as many devices as each needs: those that
look best are timed on the schedule's clock. From the best one a walk leads to grids nearby, if these are small. Where
there are few enough grids at all, a search through every one of them follows, and nothing faster is left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from virtualflow.core.cells import Cells, with_copies
from virtualflow.core.devices import Pool, names_of, type_of
from virtualflow.core.mapping import DeviceId
from virtualflow.core.sizes import size_text
from virtualflow.errors import SolverError
from virtualflow.solver.grid_costs import GridCosts
from virtualflow.solver.grid_forecast import CellsTime, StepForecast, assembled, forecast, over_capacity
from virtualflow.solver.grid_groups import cells_of, grouped
from virtualflow.solver.grid_lines import KnownLines, Line
from virtualflow.solver.grid_proof import Question, proven
from virtualflow.solver.grid_teams import (
    Team,
    distributed,
    is_data_parallel,
    is_one_pipeline,
    least,
    line_of,
    reducing,
    teams,
)
from virtualflow.solver.grid_walk import improved

MOST_TIMED = 12  # candidates
MOST_RUNS = 12_000  # of cells on the clock, after which no further candidate is timed
MOST_GROUP_RUNS = 30_000  # of cells on the clock, for grids of groups
MOST_FINISHED = 3  # candidates whose forecast is worked out device by device
NEGLIGIBLE = 1e-3  # of a step: what no walk is made for
MOST_MOVES = 6  # of a virtual node from one line to another

Lineup = tuple[tuple[Line, int], ...]  # lines with their numbers of virtual nodes


@dataclass(frozen=True, slots=True)
class GridPlan:
    """A grid, and what a step on it takes."""

    cells: Cells
    forecast: StepForecast

    @property
    def step_seconds(self) -> float:
        return self.forecast.step_seconds

    @property
    def shape(self) -> str:
        """In words: what kind of grid it is."""
        routes = list(dict.fromkeys(self.cells.routes))
        if len(self.cells.devices) == 1:
            return "one device"
        if all(len(set(route)) == 1 for route in routes):
            return f"data parallel on {len(routes)} devices"
        if len(routes) == 1:
            return f"a pipeline of {len(set(routes[0]))} devices"
        if sum(len(set(route)) for route in routes) == len({device for route in routes for device in route}):
            depths = sorted((len(set(route)) for route in routes), reverse=True)
            return f"{len(routes)} lines of {', '.join(str(depth) for depth in dict.fromkeys(depths))} devices"
        return f"a mixture of {len(routes)} routes over {len(self.cells.devices)} devices"


@dataclass(frozen=True, slots=True)
class GridAnswer:
    """The best grid, and what it is compared with."""

    best: GridPlan
    is_proven: bool  # every grid was compared
    least_seconds: float  # no grid at all can be faster
    alternatives: tuple[tuple[str, GridPlan], ...]  # by name; some may not fit


def solve_grid(
    costs: GridCosts, pools: Sequence[Pool], virtual_nodes: int, kind: str = "1f1b", copies: int = 2
) -> GridAnswer:
    """The fastest grid of *virtual_nodes* virtual nodes on the devices of *pools*. Raises SolverError if none fits."""
    search = GridSearch(costs, pools, virtual_nodes, kind, copies)
    best = search.best()
    cells, is_proven = proven(search.question, best.step_seconds if best is not None else None)
    if cells is not None:
        best = search.planned(cells)
    if not is_proven:
        best = search.improved(best)
    if best is None:
        raise SolverError(search.why_nothing_fits())
    return GridAnswer(best, is_proven, search.question.least_seconds, tuple(search.alternatives))


class GridSearch:
    """Looks through teams of lines."""

    def __init__(self, costs: GridCosts, pools: Sequence[Pool], virtual_nodes: int, kind: str, copies: int) -> None:
        self._costs, self._kind, self._copies, self._nodes = costs, kind, copies, virtual_nodes
        self.counts = {pool.device_type: pool.count for pool in pools}
        self.question = Question(costs, self.counts, virtual_nodes, kind, copies)
        self._names = {pool.device_type: names_of([pool]) for pool in pools}
        self._lines = KnownLines(costs, kind, virtual_nodes)
        self._teams = teams(self.counts, self._lines, costs, virtual_nodes)

    def best(self) -> GridPlan | None:
        """The fastest candidate that fits."""
        return next((plan for plan in self.candidates if plan.forecast.fits), None)

    def improved(self, plan: GridPlan | None) -> GridPlan | None:
        """The fastest grid that fits on a walk from *plan*, or from the candidate that is nearest to fitting."""
        if plan is not None and plan.step_seconds <= self.question.least_seconds * (1 + NEGLIGIBLE):
            return plan
        start = plan or next(iter(self.candidates), None)
        if start is None or (cells := improved(self.question, start.cells)) == start.cells:
            return plan
        best = min(self.planned(cells), start, key=worth)
        return best if best.forecast.fits else None

    @cached_property
    def candidates(self) -> list[GridPlan]:
        """Lines and groups, the best first; those that do not fit come last."""
        found = [plan for _, plan in self.alternatives]
        if (team := self._best_of(self._teams, self._lines)) is not None:
            found.append(team)
        seconds = min((plan.step_seconds for plan in found if plan.forecast.fits), default=math.inf)
        return sorted([*found, *self._of_groups(seconds)], key=worth)

    @cached_property
    def alternatives(self) -> list[tuple[str, GridPlan]]:
        """The best pure data parallelism and the best single pipeline; if they do not fit, as they would be."""
        kinds = {"data parallel": is_data_parallel, "one pipeline": is_one_pipeline}
        found = []
        unlimited = KnownLines(self._costs, self._kind, self._nodes, bounded=False)
        anything = list[Team]()
        for name, is_one in kinds.items():
            plan = self._best_of([team for team in self._teams if is_one(team)], self._lines)
            if plan is None:
                anything = anything or teams(self.counts, unlimited, self._costs, self._nodes)
                plan = self._best_of([team for team in anything if is_one(team)], unlimited, fitting=False)
            if plan is not None:
                found.append((name, plan))
        return found

    def _of_groups(self, seconds: float) -> Iterator[GridPlan]:
        """Grids of groups that might take less than *seconds*, as many as can be timed."""
        least, runs = self.question.least_seconds, 2 * self._nodes * self._costs.stages
        found = list(grouped(self.counts, self._lines, self._costs, self._kind, self._nodes, least))
        found.sort(key=lambda pair: pair[0])
        for number, (shortest, groups) in enumerate(found):
            if shortest < seconds and (number + 1) * runs <= MOST_GROUP_RUNS:
                yield self.planned(with_copies(cells_of(groups, self._names, self._nodes), self._copies))

    def planned(self, cells: Cells) -> GridPlan:
        """*cells* with their forecast."""
        return GridPlan(cells, forecast(cells, self._costs, self._kind))

    def why_nothing_fits(self) -> str:
        """What the leanest grid that was looked at would need."""
        lines = KnownLines(self._costs, self._kind, self._nodes, bounded=False)
        candidates = teams(self.counts, lines, self._costs, self._nodes)
        candidates.sort(key=lambda team: -max(len(types) for types, _ in team))
        plans = [plan for team in candidates[:MOST_TIMED] if (plan := self._finished(self._lineup(team, lines), lines))]
        excess = [
            (max(over_capacity(plan.forecast), key=lambda device: device.memory_bytes - device.capacity_bytes), plan)
            for plan in plans
            if over_capacity(plan.forecast)
        ]
        device, plan = min(excess, key=lambda pair: pair[0].memory_bytes - pair[0].capacity_bytes)
        needed, there = size_text(device.memory_bytes), size_text(device.capacity_bytes)
        return (
            f"the model does not fit: of all grids that were tried, {plan.shape} needs the least memory, {needed} on "
            f"{device.device}, and a {type_of(device.device)} has {there}. Use more devices, more stages, smaller "
            "virtual nodes, recompute=True or copies=1."
        )

    def _best_of(self, candidates: Sequence[Team], lines: KnownLines, *, fitting: bool = True) -> GridPlan | None:
        timed: list[tuple[float, Lineup]] = []
        runs = lines.simulated
        for team in candidates[:MOST_TIMED]:
            if timed and (lines.simulated - runs > MOST_RUNS or least(team, lines, self._nodes) >= timed[0][0]):
                continue
            lineup = self._balanced(self._lineup(team, lines), lines)
            timed.append((self._quick(lineup, lines), lineup))
            timed.sort(key=lambda pair: pair[0])
        plans = [self._finished(lineup, lines) for _, lineup in timed[:MOST_FINISHED]]
        plans += [self._finished(lineup, lines) for _, lineup in timed[MOST_FINISHED:] if not any(map(_fits, plans))]
        usable = [plan for plan in plans if plan is not None and (plan.forecast.fits or not fitting)]
        return min(usable, key=lambda plan: (plan.step_seconds, len(plan.cells.devices)), default=None)

    def _lineup(self, team: Team, lines: KnownLines) -> Lineup:
        known = [(line_of(types, team, lines, self._nodes), count) for types, count in team]
        chosen = [line for line, count in known for _ in range(count) if line is not None]
        given = distributed([lines.pace(line) for line in chosen], self._nodes)
        return tuple((line, nodes) for line, nodes in zip(chosen, given, strict=True) if nodes)

    def _quick(self, lineup: Lineup, lines: KnownLines) -> float:
        end = max(times.end for line, nodes in set(lineup) for times in lines.times(line, nodes))
        return end + reducing(len(lineup), [lines.pace(line) for line, _ in set(lineup)], self._costs)

    def _balanced(self, lineup: Lineup, lines: KnownLines) -> Lineup:
        """*lineup* with virtual nodes moved from the slowest line to others, as long as that helps."""
        for _ in range(MOST_MOVES if lines.simulated < MOST_RUNS else 0):
            ends = [max(times.end for times in lines.times(line, nodes)) for line, nodes in lineup]
            slowest = ends.index(max(ends))
            places = {lineup[place]: place for place in range(len(lineup)) if place != slowest}
            moved = [_moved(lineup, slowest, place) for place in places.values()]
            better = min(moved, key=lambda other: self._quick(other, lines), default=lineup)
            if self._quick(better, lines) >= self._quick(lineup, lines):
                break
            lineup = better
        return lineup

    def _finished(self, lineup: Lineup, lines: KnownLines) -> GridPlan:
        free = {name: list(devices) for name, devices in self._names.items()}
        routes: list[tuple[DeviceId, ...]] = []
        times: dict[DeviceId, CellsTime] = {}
        for line, nodes in lineup:
            devices = [free[name].pop(0) for name in line.types]
            counts = [count for _, count in line.parts]
            route = tuple(device for device, count in zip(devices, counts, strict=True) for _ in range(count))
            routes += [route] * nodes
            times |= dict(zip(devices, lines.times(line, nodes), strict=True))
        cells = with_copies(Cells(tuple(routes)), self._copies)
        return GridPlan(cells, assembled(cells, self._costs, times))


def worth(plan: GridPlan) -> tuple[float, float, int]:
    """Less is better: first by how much it does not fit."""
    return plan.forecast.excess, plan.step_seconds, len(plan.cells.devices)


def _fits(plan: GridPlan | None) -> bool:
    return plan is not None and plan.forecast.fits


def _moved(lineup: Lineup, slowest: int, place: int) -> Lineup:
    changed = list(lineup)
    for at, more in ((slowest, -1), (place, 1)):
        line, nodes = lineup[at]
        changed[at] = line, nodes + more
    return tuple(entry for entry in changed if entry[1])
