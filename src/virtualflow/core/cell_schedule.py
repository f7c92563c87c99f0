"""In which order devices run their cells: a pure function of the grid, so that every worker computes the same lists.

One list scheduler over a simulated clock serves any grid. The lists are the order of a run in which all that a cell
needs was there when it began, so they can't deadlock as long as sending blocks nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from virtualflow.core.cells import Cells
from virtualflow.core.mapping import DeviceId
from virtualflow.errors import ConfigError

SCHEDULES = ("1f1b", "gpipe")
FORWARD, BACKWARD = "F", "B"


@dataclass(frozen=True, slots=True, order=True)
class CellRun:
    """The forward ("F") or backward ("B") of one cell."""

    direction: str
    stage: int
    node: int


@dataclass(frozen=True, slots=True)
class TimedRun:
    """A cell's run on the simulated clock."""

    start: float
    end: float
    run: CellRun


Timeline = dict[DeviceId, list[TimedRun]]
Stretch = tuple[DeviceId, tuple[int, ...]]  # a device and the stages in a row that it runs of one virtual node


@dataclass(frozen=True, slots=True)
class StageCosts:
    """How long the stages take each way, and what a message between devices adds."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    message: float = 0.0

    @classmethod
    def equal(cls, stages: int) -> StageCosts:
        """A backward takes about twice as long as its forward."""
        return cls((1.0,) * stages, (2.0,) * stages)


def check_schedule(kind: str) -> None:
    if kind not in SCHEDULES:
        raise ConfigError(f"schedule={kind!r}, expected one of {', '.join(map(repr, SCHEDULES))}")


def orders(cells: Cells, kind: str, busy: Sequence[int]) -> dict[DeviceId, list[CellRun]]:
    """What each device runs, one after another, for the *busy* virtual nodes: those that have examples."""
    times = _simulated(cells, kind, tuple(busy), StageCosts.equal(cells.stages))
    return {device: [timed.run for timed in line] for device, line in times.items()}


def timeline(cells: Cells, kind: str, costs: StageCosts | None = None) -> Timeline:
    """The same for all virtual nodes, with simulated times."""
    return _simulated(cells, kind, tuple(range(cells.virtual_nodes)), costs or StageCosts.equal(cells.stages))


def bubbles(times: Timeline) -> dict[DeviceId, float]:
    """Which share of a step each device waits."""
    end = max((timed.end for line in times.values() for timed in line), default=0.0)
    busy = {device: sum(timed.end - timed.start for timed in line) for device, line in times.items()}
    return {device: 1 - busy[device] / end if end else 0.0 for device in times}


def peak_activations(runs: Iterable[CellRun]) -> int:
    """Of how many cells a device that makes *runs* holds the activations at once."""
    alive = most = 0
    for run in runs:
        alive += 1 if run.direction == FORWARD else -1
        most = max(most, alive)
    return most


def segments(route: Sequence[DeviceId]) -> list[Stretch]:
    """The route of a virtual node as runs of stages on one device."""
    found: list[tuple[DeviceId, list[int]]] = []
    for stage, device in enumerate(route):
        if found and found[-1][0] == device:
            found[-1][1].append(stage)
        else:
            found.append((device, [stage]))
    return [(device, tuple(stages)) for device, stages in found]


def flight_limit(routes: Iterable[list[Stretch]], device: DeviceId) -> int:
    """How many segments a device may have between forward and backward: they must cover the way to the loss and back.

    In a plain pipeline that is the number of devices from here to its end. If a route passes here n times
    (interleaved) the first pass needs Megatron's (n - 1) P + 2 (P - 1 - place) + 1.
    """
    most = 0
    for route in routes:
        places = [place for place, (owner, _) in enumerate(route) if owner == device]
        if len(places) == 1:
            most = max(most, len(route) - places[0])
        elif places:
            length = len({owner for owner, _ in route})
            most = max(most, (len(places) - 1) * length + 2 * (length - 1 - places[0]) + 1)
    return most


@lru_cache(maxsize=64)
def _simulated(cells: Cells, kind: str, busy: tuple[int, ...], costs: StageCosts) -> Timeline:
    check_schedule(kind)
    return _Simulation(cells, kind, busy, costs).run()


class _Simulation:
    """GPipe runs no backward before all its forwards.

    1F1B begins a forward only while fewer segments are in flight on the device than its limit, and else alternates.
    """

    def __init__(self, cells: Cells, kind: str, busy: tuple[int, ...], costs: StageCosts) -> None:
        self._kind, self._costs = kind, costs
        self._devices = cells.devices
        self._segments = {node: segments(cells.routes[node]) for node in busy}
        self._limits = {device: flight_limit(self._segments.values(), device) for device in self._devices}
        owners = [device for route in self._segments.values() for device, _ in route]
        self._forwards_left = {device: owners.count(device) for device in self._devices}
        self._flying = dict.fromkeys(self._devices, 0)
        self._free_at = dict.fromkeys(self._devices, 0.0)
        self._last = dict.fromkeys(self._devices, BACKWARD)
        self._ready = {(FORWARD, node, 0): 0.0 for node in busy}  # when its input is there
        self._times: Timeline = {device: [] for device in self._devices}

    def run(self) -> Timeline:
        while self._ready:
            # Routes in both directions, a to b and b to a, can fill each other: then one node passes its limit.
            self._make(self._next(strict=True) or self._next(strict=False))
        return self._times

    def _next(self, *, strict: bool) -> tuple[str, int, int] | None:
        """The earliest start; then the other direction than last time, the earlier node, the deeper segment."""
        allowed = [item for item in self._ready if self._may_run(item, strict)]
        return min(allowed, key=self._rank) if allowed else None

    def _may_run(self, item: tuple[str, int, int], strict: bool) -> bool:
        direction, node, place = item
        device = self._segments[node][place][0]
        if self._kind == "gpipe":
            return direction == FORWARD or not self._forwards_left[device]
        return direction == BACKWARD or not strict or self._flying[device] < self._limits[device]

    def _rank(self, item: tuple[str, int, int]) -> tuple[float | int | bool | str, ...]:
        direction, node, place = item
        device = self._segments[node][place][0]
        start = max(self._free_at[device], self._ready[item])
        age = node if direction == BACKWARD else node // len(self._devices)
        return start, self._devices.index(device), direction == self._last[device], age, -place, node, direction

    def _make(self, item: tuple[str, int, int] | None) -> None:
        assert item is not None
        direction, node, place = item
        route = self._segments[node]
        device, stages = route[place]
        time = max(self._free_at[device], self._ready.pop(item))
        for stage in stages if direction == FORWARD else reversed(stages):
            cost = (self._costs.forward if direction == FORWARD else self._costs.backward)[stage]
            self._times[device].append(TimedRun(time, time + cost, CellRun(direction, stage, node)))
            time += cost
        self._free_at[device], self._last[device] = time, direction
        self._flying[device] += 1 if direction == FORWARD else -1
        if direction == FORWARD:
            self._forwards_left[device] -= 1
            if place + 1 < len(route):
                self._ready[FORWARD, node, place + 1] = time + self._costs.message
            else:
                self._ready[BACKWARD, node, place] = time
        elif place:
            self._ready[BACKWARD, node, place - 1] = time + self._costs.message
