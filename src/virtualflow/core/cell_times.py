"""How long devices take for their cells, given how long each takes: the simulated clock for an order that is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from virtualflow.core.cell_schedule import FORWARD, CellRun
from virtualflow.core.cells import Cells
from virtualflow.core.mapping import DeviceId


@dataclass(frozen=True, slots=True)
class BothWays:
    """How long the forward and the backward of each stage take on one device."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]


def finished_at(
    cells: Cells,
    order: Mapping[DeviceId, Sequence[CellRun]],
    times: Mapping[DeviceId, BothWays],
    messages: Sequence[float],
) -> dict[DeviceId, float]:
    """When each device has made the runs of *order*, one after another, each as soon as what it needs is there.

    ``messages[stage]`` is what a message from there to the next stage takes, or back, if these run on two devices.
    """
    clock = _Clock(cells, times, messages)
    able, place = list(order), dict.fromkeys(order, 0)
    while able:
        device = able.pop()
        place[device], freed = clock.advance(device, order[device], place[device])
        able += freed
    return clock.free_at


class _Clock:
    def __init__(self, cells: Cells, times: Mapping[DeviceId, BothWays], messages: Sequence[float]) -> None:
        self._cells, self._times, self._messages = cells, times, messages
        self.free_at = dict.fromkeys(times, 0.0)
        self._forward, self._backward = ([-1.0] * (cells.stages * cells.virtual_nodes) for _ in range(2))
        self._waiting: dict[tuple[bool, int], DeviceId] = {}  # for which run

    def advance(self, device: DeviceId, runs: Sequence[CellRun], place: int) -> tuple[int, list[DeviceId]]:
        """Make what *device* can from *place* on; return how far it came, and who waited for any of it."""
        nodes, last, routes, messages = (
            len(self._cells.routes),
            self._cells.stages - 1,
            self._cells.routes,
            self._messages,
        )
        forward, backward = self._times[device].forward, self._times[device].backward
        free_at, freed = self.free_at[device], []
        for at in range(place, len(runs)):
            run = runs[at]
            stage, node = run.stage, run.node
            goes_forward, cell = run.direction == FORWARD, stage * nodes + node
            if goes_forward:
                needed, source = cell - nodes, stage - 1
                ready = self._forward[needed] if stage else 0.0
            elif stage < last:
                needed, source = cell + nodes, stage + 1
                ready = self._backward[needed]
            else:
                needed, source, ready = cell, stage, self._forward[cell]
            if ready < 0.0:
                self._waiting[goes_forward, needed] = device
                break
            if 0 <= source != stage and routes[node][source] != device:
                ready += messages[min(source, stage)]
            free_at = max(free_at, ready) + (forward if goes_forward else backward)[stage]
            (self._forward if goes_forward else self._backward)[cell] = free_at
            if self._waiting and (goes_forward, cell) in self._waiting:
                freed.append(self._waiting.pop((goes_forward, cell)))
        else:
            at = len(runs)
        self.free_at[device] = free_at
        return at, freed
