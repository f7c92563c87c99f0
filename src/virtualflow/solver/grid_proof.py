"""A search through all grids of cells, where they are few: whatever is not looked at can't be faster."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from virtualflow.core.cells import Cells, with_copies
from virtualflow.core.devices import Pool, names_of
from virtualflow.core.mapping import DeviceId
from virtualflow.solver.grid_costs import GridCosts
from virtualflow.solver.grid_forecast import forecast
from virtualflow.solver.node_shares import SLACK

MOST_CELLS, MOST_VISITS, MOST_FORECASTS = 40, 60_000, 1_500  # beyond these it gives up
PRICE_STEP = 1e-3  # how exactly prices are sought


@dataclass(frozen=True)
class Question:
    """The problem: the fastest grid of these virtual nodes on these numbers of devices of each type."""

    costs: GridCosts
    counts: Mapping[str, int]
    virtual_nodes: int
    kind: str
    copies: int

    @cached_property
    def fastest(self) -> tuple[float, ...]:
        """Of each stage the shortest time there and back."""
        both = [self.costs.both[name] for name in self.counts]
        return tuple(min(times) for times in zip(*both, strict=True))

    @cached_property
    def speeds(self) -> dict[str, float]:
        """Of each type how much of the fastest times' work it does in a second, at most."""
        return {
            name: max(best / own for best, own in zip(self.fastest, self.costs.both[name], strict=True))
            for name in self.counts
        }

    @cached_property
    def least_seconds(self) -> float:
        """No grid is faster: each virtual node passes all stages, and all devices together can do no more.

        Where the whole model is too large for any device, a virtual node goes from one to another at least once.
        """
        way = sum(self.fastest)
        if self.costs.stages > 1 and all(self._whole > self.costs.types[name].memory_bytes for name in self.counts):
            way += 2 * min(self.costs.messages[:-1])
        return max(way, self._busiest)

    @property
    def _whole(self) -> int:
        return sum(unit.weight + unit.optimizer + unit.sums for unit in self.costs.units)

    @property
    def _busiest(self) -> float:
        """How long some device computes at least.

        Give a second of each type a price: the cells cost no less than if each ran where it is cheapest, and in a step
        of T seconds devices have T times their prices to give. That holds at any prices; the best are sought.
        """
        prices = {name: self.speeds[name] for name in self.counts}
        most, factor = self._paid(prices), 4.0
        while len(prices) > 1 and factor > 1 + PRICE_STEP:
            changed = [prices | {name: prices[name] * by} for name in prices for by in (factor, 1 / factor)]
            best = max(changed, key=self._paid)
            if self._paid(best) > most:
                prices, most = best, self._paid(best)
            else:
                factor **= 0.5
        return most

    def _paid(self, prices: Mapping[str, float]) -> float:
        both = [[prices[name] * seconds for seconds in self.costs.both[name]] for name in self.counts]
        cells = self.virtual_nodes * math.fsum(min(priced) for priced in zip(*both, strict=True))
        return cells / math.fsum(count * prices[name] for name, count in self.counts.items())


def proven(question: Question, seconds: float | None) -> tuple[Cells | None, bool]:
    """The fastest of all grids that fit, if it takes less than *seconds*; and whether all were considered."""
    search = _Search(question, seconds)
    if question.virtual_nodes * question.costs.stages > MOST_CELLS:
        return None, False
    try:
        search.walk()
    except TooManyGrids:
        return search.best, False
    return search.best, True


class TooManyGrids(Exception):  # noqa: N818 (a signal, for the search alone)
    """There are more grids than it is worth to look at."""


class _Search:
    """Assigns cells one after another; devices of one type are alike, so a new one is always the next.

    Any order of the virtual nodes is another grid, since earlier ones are preferred by the schedule.
    """

    def __init__(self, question: Question, seconds: float | None) -> None:
        self._question, self._costs = question, question.costs
        self._limit = seconds if seconds is not None else float("inf")
        self.best: Cells | None = None
        self._visits = self._forecasts = 0
        self._names = {name: names_of([Pool(name, (count,))]) for name, count in question.counts.items()}
        self._used: list[tuple[DeviceId, str]] = []
        self._load: dict[DeviceId, float] = {}
        self._chosen: list[DeviceId] = []
        self._left = question.virtual_nodes * sum(question.fastest)

    def walk(self) -> None:
        """Go on from the cells that are assigned."""
        self._visits += 1
        if self._visits > MOST_VISITS:
            raise TooManyGrids
        if len(self._chosen) == self._question.virtual_nodes * self._costs.stages:
            self._consider()
            return
        if not self._has_room():
            return
        stage = len(self._chosen) % self._costs.stages
        for device, name in sorted(self._options(), key=lambda option: self._load.get(option[0], 0.0)):
            is_new = device not in self._load
            before = self._load.get(device, 0.0)
            if before + self._costs.both[name][stage] >= self._limit * (1 - SLACK):
                continue
            self._put(device, name, stage, is_new)
            self.walk()
            self._take_back(device, stage, before, is_new)

    def _options(self) -> Iterator[tuple[DeviceId, str]]:
        yield from self._used
        for name, names in self._names.items():
            taken = sum(1 for _, other in self._used if other == name)
            if taken < len(names):
                yield names[taken], name

    def _put(self, device: DeviceId, name: str, stage: int, is_new: bool) -> None:
        if is_new:
            self._used.append((device, name))
        self._load[device] = self._load.get(device, 0.0) + self._costs.both[name][stage]
        self._chosen.append(device)
        self._left -= self._question.fastest[stage]

    def _take_back(self, device: DeviceId, stage: int, before: float, is_new: bool) -> None:
        self._chosen.pop()
        self._left += self._question.fastest[stage]
        self._load[device] = before
        if is_new:
            self._used.pop()
            del self._load[device]

    def _has_room(self) -> bool:
        """Whether what is left could be done before the best known step ends."""
        room = 0.0
        for name, names in self._names.items():
            loads = [self._load[device] for device, other in self._used if other == name]
            room += (len(names) * self._limit - sum(loads)) * self._question.speeds[name]
        return room >= self._left * (1 - SLACK)

    def _consider(self) -> None:
        stages = self._costs.stages
        routes = tuple(tuple(self._chosen[at : at + stages]) for at in range(0, len(self._chosen), stages))
        if self._shortest(routes) >= self._limit * (1 - SLACK):
            return
        self._forecasts += 1
        if self._forecasts > MOST_FORECASTS:
            raise TooManyGrids
        cells = with_copies(Cells(routes), self._question.copies)
        found = forecast(cells, self._costs, self._question.kind)
        if found.fits and found.step_seconds < self._limit * (1 - SLACK):
            self._limit, self.best = found.step_seconds, cells

    def _shortest(self, routes: tuple[tuple[DeviceId, ...], ...]) -> float:
        """No less: a device waits for the stages before its first one, and these follow its last."""
        lowest: dict[DeviceId, int] = {}
        for route in routes:
            for stage, device in enumerate(route):
                lowest[device] = min(lowest.get(device, stage), stage)
        return max(sum(self._question.fastest[: lowest[device]]) + load for device, load in self._load.items())
