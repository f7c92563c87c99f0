"""What a step on a grid of cells takes: time, and of each device its waiting, its memory and its traffic.

The clock is that of the schedule: the order is the one in which workers run, the times are those of the stages. Sums of
units, what shadows get and updates follow, as they do in a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from virtualflow.core.cell_schedule import FORWARD, CellRun, orders
from virtualflow.core.cell_times import finished_at
from virtualflow.core.cells import Cells
from virtualflow.core.mapping import DeviceId
from virtualflow.solver.grid_costs import GridCosts


@dataclass(frozen=True, slots=True)
class CellsTime:
    """What a device's cells come to."""

    end: float
    busy: float
    peak_bytes: int  # of activations
    peak_cells: int


@dataclass(frozen=True, slots=True)
class DeviceForecast:
    """One device in a step."""

    device: DeviceId
    busy_seconds: float
    bubble: float  # the share of the cells' time in which it waits
    state_bytes: int  # weights, optimizer, sums
    activation_bytes: int
    activation_cells: int
    memory_bytes: int  # at most at once
    capacity_bytes: float
    sent_bytes: int
    fits: bool


@dataclass(frozen=True, slots=True)
class StepForecast:
    """A step."""

    step_seconds: float
    cells_seconds: float  # until the last cell has run
    devices: tuple[DeviceForecast, ...]

    @property
    def fits(self) -> bool:
        return all(device.fits for device in self.devices)

    @property
    def excess(self) -> float:
        """By which parts of their memory devices are over it, together: 0 where it fits."""
        return sum(max(0.0, device.memory_bytes / max(device.capacity_bytes, 1) - 1) for device in self.devices)

    @property
    def bubble(self) -> float:
        """Of all devices together."""
        return sum(device.bubble for device in self.devices) / len(self.devices)


def forecast(cells: Cells, costs: GridCosts, kind: str) -> StepForecast:
    """A step on *cells* with the schedule *kind*."""
    return assembled(cells, costs, cell_times(cells, costs, kind))


def cell_times(cells: Cells, costs: GridCosts, kind: str) -> dict[DeviceId, CellsTime]:
    """What the devices' cells come to, on the simulated clock."""
    order = orders(cells, kind, range(cells.virtual_nodes))
    ends = finished_at(cells, order, {device: costs.of(device) for device in order}, costs.messages)
    return {device: CellsTime(ends[device], *_busy_and_peak(runs, device, costs)) for device, runs in order.items()}


def assembled(cells: Cells, costs: GridCosts, times: Mapping[DeviceId, CellsTime]) -> StepForecast:
    """A step whose cells take *times*."""
    tally = _Tally(cells, costs, times)
    for number in range(len(costs.units)):
        tally.add_unit(number)
    tally.add_crossings()
    return tally.forecast()


class _Tally:
    """Adds up what units and crossings cost each device."""

    def __init__(self, cells: Cells, costs: GridCosts, times: Mapping[DeviceId, CellsTime]) -> None:
        self._cells, self._costs, self._times = cells, costs, times
        self._runners = [cells.runners(stage) for stage in range(cells.stages)]
        self._holders = [
            tuple(dict.fromkeys((*runners, *(cells.shadows[stage] if cells.shadows else ()))))
            for stage, runners in enumerate(self._runners)
        ]
        devices = cells.devices
        self._reduced_from = {device: times[device].end for device in devices}
        self._reducing, self._shadowing, self._updating = (dict.fromkeys(devices, 0.0) for _ in range(3))
        self._state, self._gradients, self._sent = (dict.fromkeys(devices, 0) for _ in range(3))

    def add_unit(self, number: int) -> None:
        unit, link = self._costs.units[number], self._costs.link
        runners = list(dict.fromkeys(device for stage in unit.stages for device in self._runners[stage]))
        holders = dict.fromkeys((*runners, *(device for stage in unit.stages for device in self._holders[stage])))
        shadows = len(holders) - len(runners)
        if (many := len(runners)) > 1:
            start = max(self._times[device].end for device in runners)
            moved = 2 * unit.sums * (many - 1) // many  # each collects a part, and gives it to all
            seconds = 2 * (many - 1) * link.latency_seconds + moved / link.bytes_per_second
            for device in runners:
                self._reduced_from[device] = max(self._reduced_from[device], start)
                self._reducing[device] += seconds
                self._sent[device] += moved
        if shadows:
            self._sent[runners[0]] += shadows * unit.weight
            for device in holders:
                if device == runners[0] or device not in runners:
                    copies = shadows if device == runners[0] else 1
                    self._shadowing[device] += copies * link.seconds(unit.weight)
        for device in holders:
            self._updating[device] += self._costs.of(device).update[number]
            self._state[device] += unit.weight + unit.optimizer
            self._gradients[device] += unit.weight
        for device in runners:
            self._state[device] += unit.sums

    def add_crossings(self) -> None:
        for route in self._cells.routes:
            for stage in range(len(route) - 1):
                if route[stage] != route[stage + 1]:
                    self._sent[route[stage]] += self._costs.crossing[stage]
                    self._sent[route[stage + 1]] += self._costs.crossing[stage]

    def forecast(self) -> StepForecast:
        cells_end = max(times.end for times in self._times.values())
        reduced = max(self._reduced_from[device] + self._reducing[device] for device in self._state)
        step = reduced + max(self._shadowing.values()) + max(self._updating.values())
        return StepForecast(step, cells_end, tuple(self._of(device, cells_end) for device in self._state))

    def _of(self, device: DeviceId, cells_end: float) -> DeviceForecast:
        times, state = self._times[device], self._state[device]
        # Finished gradients come when activations are gone.
        memory = state + max(times.peak_bytes, self._gradients[device])
        capacity = self._costs.of(device).memory_bytes
        return DeviceForecast(
            device,
            times.busy,
            1 - times.busy / cells_end if cells_end else 0.0,
            state,
            times.peak_bytes,
            times.peak_cells,
            memory,
            capacity,
            self._sent[device],
            memory <= capacity,
        )


def _busy_and_peak(runs: Iterable[CellRun], device: DeviceId, costs: GridCosts) -> tuple[float, int, int]:
    """How long *runs* take, the most bytes of activations at once, and of how many cells."""
    busy, kept, most, alive, cells = 0.0, 0, 0, 0, 0
    forward, backward = costs.of(device).forward, costs.of(device).backward
    for run in runs:
        stage = run.stage
        if run.direction == FORWARD:
            busy, kept, alive = busy + forward[stage], kept + costs.kept[stage], alive + 1
            most, cells = max(most, kept), max(cells, alive)
        else:
            most = max(most, kept + costs.working[stage])
            busy, kept, alive = busy + backward[stage], kept - costs.kept[stage], alive - 1
    return busy, most, cells


def over_capacity(forecast: StepForecast) -> Sequence[DeviceForecast]:
    """The devices on which it does not fit."""
    return [device for device in forecast.devices if not device.fits]
