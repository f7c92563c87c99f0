"""The grid of cells: who runs, holds and outlives what; and orders in which cells run."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualflow.core.cell_schedule import (
    BACKWARD,
    FORWARD,
    SCHEDULES,
    CellRun,
    bubbles,
    flight_limit,
    needed_by,
    orders,
    peak_activations,
    segments,
    timeline,
)
from virtualflow.core.cells import Cells, given_cells, pipelines, with_copies
from virtualflow.errors import ConfigError, MappingError


@st.composite
def grids(draw: st.DrawFn) -> Cells:
    stages, nodes, devices = draw(st.integers(1, 5)), draw(st.integers(1, 6)), draw(st.integers(1, 5))
    device = st.sampled_from([str(number) for number in range(devices)])
    route = st.tuples(*[device] * stages)
    return Cells(tuple(draw(st.lists(route, min_size=nodes, max_size=nodes))))


def completed(cells: Cells, order: dict[str, list[CellRun]]) -> list[CellRun]:
    """All that can run when each device waits for what its next cell needs: everything, if there is no deadlock."""
    at, done = dict.fromkeys(order, 0), dict[CellRun, None]()
    moved = True
    while moved:
        moved = False
        for device, runs in order.items():
            while at[device] < len(runs) and needs(cells, runs[at[device]]) <= done.keys():
                done[runs[at[device]]] = None
                at[device] += 1
                moved = True
    return list(done)


def needs(cells: Cells, run: CellRun) -> set[CellRun]:
    if run.direction == FORWARD:
        return {CellRun(FORWARD, run.stage - 1, run.node)} if run.stage else set()
    own = {CellRun(FORWARD, run.stage, run.node)}
    return own | ({CellRun(BACKWARD, run.stage + 1, run.node)} if run.stage + 1 < cells.stages else set())


@settings(deadline=None, max_examples=300)
@given(grids(), st.sampled_from(SCHEDULES), st.data())
def test_every_busy_cell_runs_once_each_way_and_nothing_deadlocks(cells: Cells, kind: str, data: st.DataObject) -> None:
    busy = data.draw(st.lists(st.integers(0, cells.virtual_nodes - 1), unique=True).map(sorted))
    order = orders(cells, kind, busy)
    wanted = {
        CellRun(direction, stage, node)
        for direction in (FORWARD, BACKWARD)
        for stage in range(cells.stages)
        for node in busy
    }
    done = completed(cells, order)
    assert len(done) == len(wanted) == sum(map(len, order.values()))
    assert set(done) == wanted
    for device, runs in order.items():
        assert {(run.stage, run.node) for run in runs} <= set(cells.cells_of(device))


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("nodes", [1, 2, 4, 7, 8])
def test_1f1b_on_a_pipeline_is_the_textbooks(depth: int, nodes: int) -> None:
    cells = Cells(tuple(tuple(str(stage) for stage in range(depth)) for _ in range(nodes)))
    order = orders(cells, "1f1b", range(nodes))
    for stage in range(depth):
        warm = min(nodes, depth - stage)
        expected = [(FORWARD, node) for node in range(warm)]
        for node in range(nodes):
            expected.append((BACKWARD, node))
            if warm + node < nodes:
                expected.append((FORWARD, warm + node))
        assert [(run.direction, run.node) for run in order[str(stage)]] == expected


@pytest.mark.parametrize("kind", SCHEDULES)
def test_the_order_of_a_pipeline_does_not_depend_on_how_many_stages_its_devices_run(kind: str) -> None:
    """Else a device that has more of them, because they are short, would be waited for where it is long done."""
    even, uneven = (orders(Cells((tuple(route),) * 8), kind, range(8)) for route in ("abcd", "abbbcddd"))

    def passes(runs: list[CellRun]) -> list[tuple[str, int]]:
        return list(dict.fromkeys((run.direction, run.node) for run in runs))

    assert {device: passes(runs) for device, runs in even.items()} == {d: passes(runs) for d, runs in uneven.items()}


@st.composite
def of_pipelines(draw: st.DrawFn) -> Cells:
    """Pipelines, some interleaved, that share no device; virtual nodes go to them in any order."""
    count, stages, routes = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 4, 6, 12])), []
    for number in range(count):
        depth = draw(st.integers(1, min(4, stages)))
        rounds = draw(st.integers(1, stages // depth))
        stretches = [f"{number}{turn % depth}" for turn in range(depth * rounds)]
        routes.append(tuple(stretches[stage * len(stretches) // stages] for stage in range(stages)))
    nodes = draw(st.lists(st.sampled_from(routes), min_size=1, max_size=16))
    return Cells(tuple(nodes))


@settings(deadline=None)
@given(of_pipelines(), st.sampled_from(SCHEDULES))
def test_lists_and_their_times_are_of_one_run(cells: Cells, kind: str) -> None:
    """Each run begins when what it needs is over, and its device has made the one before."""
    order, times = orders(cells, kind, range(cells.virtual_nodes)), timeline(cells, kind)
    assert order == {device: [timed.run for timed in line] for device, line in times.items()}
    ends = {timed.run: timed.end for line in times.values() for timed in line}
    for line in times.values():
        free_at = 0.0
        for timed in line:
            needed = needed_by(timed.run, cells.stages)
            assert timed.start == max(free_at, ends[needed] if needed is not None else 0.0)
            free_at = timed.end


def interleaved(devices: int, rounds: int, nodes: int) -> Cells:
    return Cells((tuple(str(stage % devices) for stage in range(devices * rounds)),) * nodes)


def waits(cells: Cells, kind: str) -> float:
    """The most that a device waits, in what a virtual node takes there."""
    times = timeline(cells, kind)
    taken = sum(timed.end - timed.start for timed in times["0"]) / cells.virtual_nodes
    return max(timed.end for line in times.values() for timed in line) / taken - cells.virtual_nodes


@pytest.mark.parametrize("rounds", [2, 3, 4])
@pytest.mark.parametrize("devices", [2, 3, 4, 8])
def test_an_interleaved_pipeline_waits_as_little_as_the_textbooks(devices: int, rounds: int) -> None:
    for groups in (1, 2, 4):
        waited = waits(interleaved(devices, rounds, groups * devices), "1f1b")
        assert waited == pytest.approx((devices - 1) / rounds)


@pytest.mark.parametrize("rounds", [2, 3, 4])
@pytest.mark.parametrize("devices", [2, 3, 4, 5])
def test_interleaved_1f1b_never_waits_longer_than_gpipe_and_holds_less(devices: int, rounds: int) -> None:
    for nodes in range(1, 2 * devices + 2):
        cells = interleaved(devices, rounds, nodes)
        assert waits(cells, "1f1b") <= waits(cells, "gpipe") + 1e-9
        held = [peak_activations(runs) for runs in orders(cells, "1f1b", range(nodes)).values()]
        assert max(held) <= min(nodes * rounds, (rounds + 1) * devices - 1)


@pytest.mark.parametrize("nodes", [2, 4, 8, 16])
@pytest.mark.parametrize("route", ["abba", "abcddcba", "abcabba"])
def test_1f1b_through_devices_that_take_turns_ends_no_later_than_gpipe_and_keeps_its_limit(
    route: str, nodes: int
) -> None:
    cells = Cells((tuple(route),) * nodes)
    ends = {kind: max(line[-1].end for line in timeline(cells, kind).values()) for kind in SCHEDULES}
    assert ends["1f1b"] <= ends["gpipe"] + 1e-9
    for device, runs in orders(cells, "1f1b", range(nodes)).items():
        together = max(len(stages) for owner, stages in segments(cells.routes[0]) if owner == device)
        assert peak_activations(runs) <= flight_limit([segments(cells.routes[0])], device) * together


def test_two_interleaved_pipelines_side_by_side_wait_no_longer_than_one() -> None:
    one, other = (tuple(f"{name}{stage % 4}" for stage in range(8)) for name in "ab")
    apart = bubbles(timeline(Cells((one, other) * 8), "1f1b"))
    assert max(apart.values()) == pytest.approx(max(bubbles(timeline(interleaved(4, 2, 8), "1f1b")).values()))


@pytest.mark.parametrize("nodes", [4, 8])
def test_1f1b_holds_as_many_activations_as_the_way_is_long_and_gpipe_those_of_all(nodes: int) -> None:
    cells = pipelines(4, nodes, "abcd")
    held = {kind: [peak_activations(runs) for runs in orders(cells, kind, range(nodes)).values()] for kind in SCHEDULES}
    assert held == {"gpipe": [nodes] * 4, "1f1b": [4, 3, 2, 1]}


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize(("depth", "nodes"), [(2, 4), (4, 8), (3, 5)])
def test_a_pipelines_bubble_is_that_of_the_papers(kind: str, depth: int, nodes: int) -> None:
    times = timeline(pipelines(depth, nodes, [str(device) for device in range(depth)]), kind)
    for share in bubbles(times).values():
        assert share == pytest.approx((depth - 1) / (nodes + depth - 1))


def test_interleaving_makes_the_bubble_smaller() -> None:
    plain = Cells((("a", "a", "b", "b"),) * 8)
    interleaved = Cells((("a", "b", "a", "b"),) * 8)
    assert max(bubbles(timeline(interleaved, "1f1b")).values()) < max(bubbles(timeline(plain, "1f1b")).values())


def test_a_schedule_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match="'1f1b', 'gpipe'"):
        orders(pipelines(1, 1, "a"), "zero bubble", [0])


@settings(deadline=None)
@given(grids(), st.integers(1, 4))
def test_every_stage_has_as_many_holders_as_asked_for(cells: Cells, copies: int) -> None:
    covered = with_copies(cells, copies)
    for stage in range(cells.stages):
        assert len(covered.holders(stage)) >= min(copies, len(cells.devices))
        assert set(covered.runners(stage)) == set(cells.runners(stage))
    if copies > 1 and len(cells.devices) > 1:
        assert not covered.at_risk()


def test_what_a_death_would_lose_is_known() -> None:
    assert pipelines(4, 4, "ab").at_risk() == (0, 1, 2, 3)
    assert Cells((("a", "b", "b"), ("a", "b", "c"))).at_risk() == (0, 1)


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 8), st.integers(1, 12))
def test_the_default_grid_has_work_for_every_device(stages: int, nodes: int, count: int) -> None:
    devices = [str(number) for number in range(count)]
    if -(-count // stages) > nodes:
        with pytest.raises(MappingError, match="use at most"):
            pipelines(stages, nodes, devices)
        return
    cells = pipelines(stages, nodes, devices)
    assert (cells.stages, cells.virtual_nodes) == (stages, nodes)
    assert cells.devices == tuple(devices)


@pytest.mark.parametrize(
    ("count", "shape"),
    [
        (1, [("0",) * 4]),
        (2, [("0", "0", "1", "1")]),
        (3, [("0", "0", "1", "2")]),
        (4, [("0", "1", "2", "3")]),
        (5, [("0", "0", "1", "1"), ("2", "2", "3", "4")]),
        (8, [("0", "1", "2", "3"), ("4", "5", "6", "7")]),
    ],
)
def test_pipelines_are_as_long_as_the_stages_allow(count: int, shape: list[tuple[str, ...]]) -> None:
    cells = pipelines(4, 8, [str(number) for number in range(count)])
    assert list(dict.fromkeys(cells.routes)) == shape


def test_a_grid_by_hand_has_a_row_for_each_stage() -> None:
    assert given_cells([[0, 0], [1, 0]], 2, 2, "ab").routes == (("a", "b"), ("a", "a"))
    assert given_cells([[0, 1]], 2, 2, "ab").routes == (("a", "a"), ("b", "b"))


@pytest.mark.parametrize(
    ("rows", "message"),
    [([[0, 0], [1]], "row"), ([[0, 1], [0, 2]], "names device 2"), ([[0, 0], [0, 0]], "device 1 nothing")],
)
def test_a_grid_by_hand_must_fit(rows: list[list[int]], message: str) -> None:
    with pytest.raises(MappingError, match=message):
        given_cells(rows, 2, 2, "ab")
