"""Better grids near one that is known: a walk of small changes, the same walk whenever the question is the same.

Candidates are regular. What they miss is found here, where a grid is small enough to be timed many times: devices that
share a stage for some of the virtual nodes, cuts that differ from node to node, lines that cross.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from virtualflow.core.cell_schedule import segments
from virtualflow.core.cells import Cells, with_copies
from virtualflow.core.devices import Pool, names_of, type_of
from virtualflow.core.mapping import DeviceId
from virtualflow.solver.grid_forecast import forecast
from virtualflow.solver.grid_proof import Question

MOST_RUNS = 60_000  # of cells on the clock: about half a second
FEWEST_FORECASTS = 20  # a grid so large that fewer can be paid is not walked from
REMEMBERED = 12  # steps: a change may be as bad as where the walk was so long ago
LOOKS = 4  # at neighbours, known ones among them, for each forecast that can be paid

Route = tuple[DeviceId, ...]
Routes = tuple[Route, ...]
Worth = tuple[float, float]  # by how much it does not fit, then how long a step takes: less is better


def improved(question: Question, cells: Cells, most_runs: int = MOST_RUNS) -> Cells:
    """The best grid on a walk from *cells*, which may be one that does not fit; *cells* if there is none."""
    forecasts = most_runs // (2 * question.costs.stages * question.virtual_nodes)
    if forecasts < FEWEST_FORECASTS:
        return cells
    routes = _Walk(question, forecasts).best_from(cells.routes)
    return with_copies(Cells(_with_first_devices(routes, question)), question.copies)


def _with_first_devices(routes: Routes, question: Question) -> Routes:
    """The same on the first devices of each type: which ones a walk ends on has no meaning."""
    free = {name: iter(names_of([Pool(name, (count,))])) for name, count in question.counts.items()}
    used = dict.fromkeys(device for route in routes for device in route)
    names = {device: next(free[type_of(device)]) for device in used}
    return tuple(tuple(names[device] for device in route) for route in routes)


class _Walk:
    """Goes on to a neighbour that is no worse than the grid of some steps ago (late acceptance)."""

    def __init__(self, question: Question, forecasts: int) -> None:
        self._question, self._forecasts = question, forecasts
        self._neighbours = _Neighbours(question, random.Random(0))
        self._known: dict[Routes, Worth] = {}

    def best_from(self, routes: Routes) -> Routes:
        best, worth = routes, self._worth(routes)
        past = [worth] * REMEMBERED
        for step in range(LOOKS * self._forecasts):
            if len(self._known) >= self._forecasts:
                break
            changed = self._neighbours.of(routes)
            found = self._worth(changed)
            if found <= max(worth, past[step % REMEMBERED]):
                routes, worth = changed, found
                best = min(best, routes, key=self._worth)
            past[step % REMEMBERED] = worth
        return best

    def _worth(self, routes: Routes) -> Worth:
        if routes not in self._known:
            question = self._question
            step = forecast(with_copies(Cells(routes), question.copies), question.costs, question.kind)
            self._known[routes] = step.excess, step.step_seconds
        return self._known[routes]


class _Neighbours:
    """Draws changes: of one virtual node, of all that go one way, or of half of those."""

    def __init__(self, question: Question, draw: random.Random) -> None:
        self._draw = draw
        pools = [Pool(name, (count,)) for name, count in question.counts.items()]
        self._names = names_of(pools)

    def of(self, routes: Routes) -> Routes:
        """*routes* with one change, now and then none."""
        draw = self._draw
        if draw.random() < 0.1:
            return self._exchanged(routes)
        node = draw.randrange(len(routes))
        same = [other for other, route in enumerate(routes) if route == routes[node]]
        nodes = draw.choices(([node], same, same[::2], same[len(same) // 2 :]), (4, 3, 2, 1))[0]
        changes = (self._other_way, self._moved_cut, self._other_device, self._part_moved, self._one_moved)
        route = draw.choices(changes, (3, 6, 5, 2, 2))[0](routes[node], routes)
        changed = list(routes)
        for other in nodes:
            changed[other] = route
        return tuple(changed)

    def _exchanged(self, routes: Routes) -> Routes:
        """Two devices change places."""
        if len(self._names) < 2:
            return routes
        one, other = self._draw.sample(self._names, 2)
        places = {one: other, other: one}
        return tuple(tuple(places.get(device, device) for device in route) for route in routes)

    def _other_way(self, route: Route, routes: Routes) -> Route:
        """It goes as another node does."""
        return self._draw.choice([other for other in dict.fromkeys(routes) if other != route] or [route])

    def _moved_cut(self, route: Route, _: Routes) -> Route:
        """A device gives stages to the next one, or to the one before."""
        stretches = segments(route)
        if len(stretches) < 2:
            return route
        place = self._draw.randrange(len(stretches) - 1)
        (one, own), (other, theirs) = stretches[place : place + 2]
        if self._draw.random() < 0.5:
            return _with(route, own[-self._draw.randint(1, len(own)) :], other)
        return _with(route, theirs[: self._draw.randint(1, len(theirs))], one)

    def _other_device(self, route: Route, _: Routes) -> Route:
        """What one device runs is run by another."""
        stages = self._draw.choice(segments(route))[1]
        return _with(route, stages, self._draw.choice(self._names))

    def _part_moved(self, route: Route, _: Routes) -> Route:
        """The first or the last of what one device runs is run by another."""
        stages = self._draw.choice(segments(route))[1]
        number = self._draw.randint(1, len(stages))
        part = stages[:number] if self._draw.random() < 0.5 else stages[-number:]
        return _with(route, part, self._draw.choice(self._names))

    def _one_moved(self, route: Route, _: Routes) -> Route:
        """One stage is run by another device."""
        return _with(route, (self._draw.randrange(len(route)),), self._draw.choice(self._names))


def _with(route: Route, stages: Sequence[int], device: DeviceId) -> Route:
    return tuple(device if stage in stages else owner for stage, owner in enumerate(route))
