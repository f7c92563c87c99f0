"""The simulated clock of a grid against the plain definition: a run ends when what it needs is there, plus its time."""

from __future__ import annotations

from functools import lru_cache

import pytest

from virtualflow.core.cell_schedule import FORWARD, SCHEDULES, CellRun, orders
from virtualflow.core.cell_times import BothWays, finished_at
from virtualflow.core.cells import Cells, pipelines

FORWARDS, BACKWARDS, MESSAGES = (1.0, 2.0, 3.0), (2.0, 5.0, 7.0), (0.5, 0.25)
GRIDS = {
    "one device": Cells((("a",) * 3,) * 4),
    "a pipeline": pipelines(3, 4, ["a", "b", "c"]),
    "two pipelines": pipelines(3, 4, ["a", "b", "c", "d", "e", "f"]),
    "there and back": Cells((("a", "b", "a"),) * 4),
    "uneven": Cells((("a", "b", "b"), ("a", "a", "b"), ("b", "a", "a"))),
}


def by_definition(cells: Cells, order: dict[str, list[CellRun]]) -> dict[str, float]:
    """The same without a clock: each run asks for what comes before it."""

    @lru_cache(None)
    def end(run: CellRun) -> float:
        device = cells.routes[run.node][run.stage]
        place = order[device].index(run)
        free = end(order[device][place - 1]) if place else 0.0
        forward = run.direction == FORWARD
        if forward:
            source = run.stage - 1
            needed = end(CellRun(FORWARD, source, run.node)) if run.stage else 0.0
        elif run.stage < cells.stages - 1:
            source = run.stage + 1
            needed = end(CellRun(run.direction, source, run.node))
        else:
            source, needed = run.stage, end(CellRun(FORWARD, run.stage, run.node))
        if 0 <= source != run.stage and cells.routes[run.node][source] != device:
            needed += MESSAGES[min(source, run.stage)]
        return max(free, needed) + (FORWARDS if forward else BACKWARDS)[run.stage]

    return {device: end(runs[-1]) if runs else 0.0 for device, runs in order.items()}


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("grid", GRIDS)
def test_each_device_is_done_when_its_last_run_is(grid: str, kind: str) -> None:
    cells = GRIDS[grid]
    order = orders(cells, kind, range(cells.virtual_nodes))
    times = {device: BothWays(FORWARDS, BACKWARDS) for device in cells.devices}
    assert finished_at(cells, order, times, MESSAGES) == by_definition(cells, order)


def test_a_device_alone_takes_the_time_of_all_its_cells() -> None:
    cells = GRIDS["one device"]
    order = orders(cells, "1f1b", range(4))
    assert finished_at(cells, order, {"a": BothWays(FORWARDS, BACKWARDS)}, MESSAGES) == {"a": 4 * 20.0}
