"""In which order devices run their cells: a pure function of the grid, so that every worker computes the same lists.

Pipelines that share no device have the orders of the textbook, interleaved or not; one list scheduler over a simulated
clock serves any other grid. On that clock the stages that a device runs in a row take as long as those of any other, as
they do where a cut is good: a pipeline's order is then the same however it is cut. The lists are the order of a run in
which all that a cell needs was there when it began, so they can't deadlock as long as sending blocks nobody.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from virtualflow.core import interleaving
from virtualflow.core.cells import Cells
from virtualflow.core.mapping import DeviceId
from virtualflow.errors import ConfigError

SCHEDULES = ("1f1b", "gpipe")
FORWARD, BACKWARD = "F", "B"
TIMES = {FORWARD: 1.0, BACKWARD: 2.0}  # of a device's stages together, on the simulated clock


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


def check_schedule(kind: str) -> None:
    if kind not in SCHEDULES:
        raise ConfigError(f"pipeline={kind!r}, expected one of {', '.join(map(repr, SCHEDULES))}")


def orders(cells: Cells, kind: str, busy: Sequence[int]) -> dict[DeviceId, list[CellRun]]:
    """What each device runs, one after another, for the *busy* virtual nodes: those that have examples."""
    check_schedule(kind)
    if (known := _textbook_orders(cells, kind, busy)) is not None:
        return known
    times = _simulated(cells, kind, tuple(busy))
    return {device: [timed.run for timed in line] for device, line in times.items()}


def _textbook_orders(cells: Cells, kind: str, busy: Sequence[int]) -> dict[DeviceId, list[CellRun]] | None:
    """The orders of a grid that consists of pipelines without common devices; None if it is another one."""
    nodes_of: dict[tuple[DeviceId, ...], list[int]] = {}
    for node in sorted(busy):
        nodes_of.setdefault(cells.routes[node], []).append(node)
    found = {device: list[CellRun]() for device in cells.devices}
    if sum(len(set(route)) for route in nodes_of) > len({device for route in nodes_of for device in route}):
        return None
    for route, nodes in nodes_of.items():
        stretches = segments(route)
        rounds = interleaving.rounds_of([owner for owner, _ in stretches])
        if rounds == 1:
            found |= _pipeline_orders(stretches, kind, nodes)
        elif rounds and kind == "1f1b":
            found |= _interleaved_orders(stretches, rounds, nodes)
        else:
            return None
    return found


def _interleaved_orders(route: Sequence[Stretch], rounds: int, busy: Sequence[int]) -> dict[DeviceId, list[CellRun]]:
    devices, found = len(route) // rounds, {}
    for place, (device, _) in enumerate(route[:devices]):
        line: list[CellRun] = []
        for goes_forward, number, node in interleaving.turns(place, devices, rounds, busy):
            stages = route[number * devices + place][1]
            line += [CellRun(FORWARD, stage, node) for stage in stages if goes_forward]
            line += [CellRun(BACKWARD, stage, node) for stage in reversed(stages) if not goes_forward]
        found[device] = line
    return found


def _pipeline_orders(route: Sequence[Stretch], kind: str, busy: Sequence[int]) -> dict[DeviceId, list[CellRun]]:
    found = {}
    for place, (device, stages) in enumerate(route):
        forwards = [[CellRun(FORWARD, stage, node) for stage in stages] for node in busy]
        backwards = [[CellRun(BACKWARD, stage, node) for stage in reversed(stages)] for node in busy]
        ahead = len(busy) if kind == "gpipe" else min(len(busy), len(route) - place)
        line = forwards[:ahead]
        for done, backward in enumerate(backwards):
            line += [backward, *forwards[ahead + done : ahead + done + 1]]
        found[device] = [run for passed in line for run in passed]
    return found


def timeline(cells: Cells, kind: str) -> Timeline:
    """The same for all virtual nodes, with simulated times."""
    check_schedule(kind)
    every = tuple(range(cells.virtual_nodes))
    if (known := _textbook_orders(cells, kind, every)) is not None:
        return _timed(cells, known)
    return _simulated(cells, kind, every)


def _timed(cells: Cells, order: Mapping[DeviceId, Sequence[CellRun]]) -> Timeline:
    """When each run of *order* starts and ends, each as soon as its device is free and what it needs is there."""
    parts = {
        (stage, node): len(stages)
        for node, route in enumerate(cells.routes)
        for _, stages in segments(route)
        for stage in stages
    }
    times: Timeline = {device: [] for device in order}
    ended: dict[CellRun, float] = {}
    able = list(order)
    waiting: dict[CellRun, DeviceId] = {}
    while able:
        device = able.pop()
        line = times[device]
        for run in order[device][len(line) :]:
            needed = needed_by(run, cells.stages)
            if needed is not None and needed not in ended:
                waiting[needed] = device
                break
            start = max(line[-1].end if line else 0.0, ended[needed] if needed is not None else 0.0)
            ended[run] = start + TIMES[run.direction] / parts[run.stage, run.node]
            line.append(TimedRun(start, ended[run], run))
            if run in waiting:
                able.append(waiting.pop(run))
    return times


def needed_by(run: CellRun, stages: int) -> CellRun | None:
    """What must be over before *run* can begin; None for the first forward of a virtual node."""
    if run.direction == FORWARD:
        return CellRun(FORWARD, run.stage - 1, run.node) if run.stage else None
    if run.stage + 1 < stages:
        return CellRun(BACKWARD, run.stage + 1, run.node)
    return CellRun(FORWARD, run.stage, run.node)


def bubbles(times: Timeline) -> dict[DeviceId, float]:
    """Which share of a step each device waits."""
    end = _end(times)
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

    In a plain pipeline that is the number of devices from here to its end. If a route passes here n times, the first
    pass needs as much as in an interleaved one of P devices: (n - 1) P + 2 (P - 1 - place) + 1.
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
def _simulated(cells: Cells, kind: str, busy: tuple[int, ...]) -> Timeline:
    """For 1F1B the shorter of two: neither taking turns nor beginning all that the limit allows is always better."""
    ways = (True, False) if kind == "1f1b" else (True,)
    return min((_Simulation(cells, kind, busy, takes_turns=turns).run() for turns in ways), key=_end)


def _end(times: Timeline) -> float:
    return max((line[-1].end for line in times.values() if line), default=0.0)


Item = tuple[str, int, int]  # a direction, a virtual node and the place of a segment on its route


class _Simulation:
    """GPipe runs no backward before all its forwards, and earlier nodes first.

    1F1B begins a forward only while fewer segments are in flight on the device than its limit. A device for which both
    directions are ready takes turns, or else runs the forward.
    """

    def __init__(self, cells: Cells, kind: str, busy: tuple[int, ...], *, takes_turns: bool) -> None:
        self._kind = kind
        self._takes_turns = takes_turns
        self._places = {device: place for place, device in enumerate(cells.devices)}
        self._segments = {node: segments(cells.routes[node]) for node in busy}
        different = [segments(route) for route in {cells.routes[node] for node in busy}]
        self._limits = {device: flight_limit(different, device) for device in self._places}
        owners = Counter(device for route in self._segments.values() for device, _ in route)
        self._forwards_left = {device: owners[device] for device in self._places}
        self._flying = dict.fromkeys(self._places, 0)
        self._free_at = dict.fromkeys(self._places, 0.0)
        self._last = dict.fromkeys(self._places, BACKWARD)
        self._ready: dict[DeviceId, dict[str, dict[Item, float]]] = {  # when the input of what may run is there
            device: {FORWARD: {}, BACKWARD: {}} for device in self._places
        }
        for node in busy:
            self._ready[self._segments[node][0][0]][FORWARD][FORWARD, node, 0] = 0.0
        # What each device would run next, the earliest first; one that was looked at again since does not count.
        self._next_runs: list[tuple[tuple[float, ...], int, Item]] = []
        self._looks = dict.fromkeys(self._places, 0)
        self._times: Timeline = {device: [] for device in self._places}

    def run(self) -> Timeline:
        for device in self._places:
            self._look(device)
        while (item := self._next()) is not None:
            self._make(item)
        return self._times

    def _next(self) -> Item | None:
        """The earliest start; then what the schedule prefers, the deeper segment, the earlier node."""
        while self._next_runs:
            _, look, item = heapq.heappop(self._next_runs)
            if look == self._looks[self._device_of(item)]:
                return item
        # Routes in both directions, a to b and b to a, can fill each other: then one node passes its limit.
        waiting = [item for ready in self._ready.values() for items in ready.values() for item in items]
        return min(waiting, key=self._rank) if waiting else None

    def _device_of(self, item: Item) -> DeviceId:
        return self._segments[item[1]][item[2]][0]

    def _look(self, device: DeviceId) -> None:
        """See what *device* would run next."""
        self._looks[device] += 1
        ready = self._ready[device]
        allowed = [item for direction in ready if self._may_run(direction, device) for item in ready[direction]]
        if allowed:
            rank, item = min((self._rank(item), item) for item in allowed)
            heapq.heappush(self._next_runs, (rank, self._looks[device], item))

    def _may_run(self, direction: str, device: DeviceId) -> bool:
        if self._kind == "gpipe":
            return direction == FORWARD or not self._forwards_left[device]
        return direction == BACKWARD or self._flying[device] < self._limits[device]

    def _rank(self, item: Item) -> tuple[float, ...]:
        direction, node, place = item
        device = self._device_of(item)
        start = max(self._free_at[device], self._ready[device][direction][item])
        if self._kind == "gpipe":
            later = node if direction == BACKWARD else node // len(self._places)
        else:
            later = direction == (self._last[device] if self._takes_turns else BACKWARD)
        return start, self._places[device], later, -place, node

    def _make(self, item: Item) -> None:
        direction, node, place = item
        route = self._segments[node]
        device, stages = route[place]
        time = max(self._free_at[device], self._ready[device][direction].pop(item))
        cost = TIMES[direction] / len(stages)  # whoever runs more stages has shorter ones, or is faster
        for stage in stages if direction == FORWARD else reversed(stages):
            self._times[device].append(TimedRun(time, time + cost, CellRun(direction, stage, node)))
            time += cost
        self._free_at[device], self._last[device] = time, direction
        self._flying[device] += 1 if direction == FORWARD else -1
        self._forwards_left[device] -= direction == FORWARD
        if direction == FORWARD and place + 1 == len(route):
            self._ready[device][BACKWARD][BACKWARD, node, place] = time
        elif (then := place + (1 if direction == FORWARD else -1)) >= 0:
            self._ready[route[then][0]][direction][direction, node, then] = time
            self._look(route[then][0])
        self._look(device)
