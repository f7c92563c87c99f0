"""The fastest grid of a model in stages: against brute force over every grid, and on instances known by heart."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualflow.core.cells import Cells, with_copies
from virtualflow.core.devices import Pool, names_of, parse_pools
from virtualflow.core.stage_profile import Link
from virtualflow.errors import SolverError
from virtualflow.solver.grid_costs import GridCosts, TypeCosts, UnitBytes
from virtualflow.solver.grid_forecast import StepForecast, forecast
from virtualflow.solver.grid_proof import Question
from virtualflow.solver.grid_search import GridSearch, solve_grid

FREE = Link()


def costs_of(
    stages: int,
    *,
    kept: int = 1,
    memory: float = math.inf,
    weight: int = 10,
    seconds: float = 1.0,
    types: dict[str, float] | None = None,
    link: Link = FREE,
) -> GridCosts:
    """Equal stages; of each type how many times slower it is."""
    return GridCosts(
        {
            name: TypeCosts((slow * seconds,) * stages, (2 * slow * seconds,) * stages, (0.0,) * stages, memory)
            for name, slow in (types or {"cpu": 1.0}).items()
        },
        (kept,) * stages,
        (0,) * stages,
        (1,) * stages,
        tuple(UnitBytes((stage,), weight, 2 * weight, 2 * weight) for stage in range(stages)),
        link,
    )


@st.composite
def questions(draw: st.DrawFn) -> Question:
    """Small enough for every grid: at most 729 of them."""
    stages, nodes, devices = draw(st.sampled_from([(2, 2, 3), (2, 3, 2), (2, 3, 3), (3, 2, 2), (3, 3, 2), (2, 4, 2)]))
    seconds, size = st.floats(0.1, 3.0), st.integers(0, 20)
    names = draw(st.sampled_from([("cpu",), ("V100", "P100")]))
    counts = {names[0]: devices} if len(names) == 1 else {names[0]: 1, names[1]: devices - 1}
    row = st.tuples(*[seconds] * stages)
    sizes = st.tuples(*[size] * stages)
    units = [UnitBytes((stage,), draw(size), draw(size), draw(size)) for stage in range(stages)]
    if draw(st.booleans()):
        units.append(UnitBytes((0, stages - 1), draw(size), draw(size), draw(size)))
    update = st.tuples(*[st.floats(0.0, 0.3)] * len(units))
    memory = st.sampled_from([math.inf, 60.0, 120.0, 200.0])
    types = {name: TypeCosts(draw(row), draw(row), draw(update), draw(memory)) for name in names}
    link = draw(st.sampled_from([Link(), Link(0.05, 100.0), Link(0.5, 10.0)]))
    costs = GridCosts(types, draw(sizes), draw(sizes), draw(sizes), tuple(units), link)
    return Question(costs, counts, nodes, draw(st.sampled_from(["1f1b", "gpipe"])), draw(st.integers(1, 2)))


def pools_of(question: Question) -> list[Pool]:
    return [Pool(name, (count,)) for name, count in question.counts.items()]


def by_brute_force(question: Question) -> float | None:
    """The shortest step of all grids that fit, every one of them forecast."""
    names, stages = names_of(pools_of(question)), question.costs.stages
    found = []
    for owners in itertools.product(names, repeat=stages * question.virtual_nodes):
        routes = tuple(owners[at : at + stages] for at in range(0, len(owners), stages))
        cells = with_copies(Cells(routes), question.copies)
        if (step := forecast(cells, question.costs, question.kind)).fits:
            found.append(step.step_seconds)
    return min(found, default=None)


@settings(deadline=None, max_examples=60)
@given(questions())
def test_no_grid_at_all_is_faster_where_the_answer_says_so(question: Question) -> None:
    shortest = by_brute_force(question)
    try:
        answer = solve_grid(question.costs, pools_of(question), question.virtual_nodes, question.kind, question.copies)
    except SolverError:
        assert shortest is None
        return
    assert shortest is not None
    assert answer.best.forecast.fits
    assert answer.best.step_seconds >= shortest * (1 - 1e-9)
    assert answer.is_proven
    assert answer.best.step_seconds == pytest.approx(shortest)
    assert answer.least_seconds <= shortest * (1 + 1e-9)


@settings(deadline=None, max_examples=60)
@given(questions())
def test_a_team_of_lines_has_the_forecast_of_its_grid(question: Question) -> None:
    """Lines are timed one by one, which is what makes many devices affordable."""
    search = GridSearch(question.costs, pools_of(question), question.virtual_nodes, question.kind, question.copies)
    if (plan := search.best()) is not None:
        assert plan.forecast == forecast(plan.cells, question.costs, question.kind)
    for _, other in search.alternatives:
        assert other.forecast == forecast(other.cells, question.costs, question.kind)


def step_of(rows: str, costs: GridCosts, copies: int = 1) -> StepForecast:
    """A forecast of a grid such as ``aab/bbb``."""
    lines = rows.split("/")
    routes = tuple(tuple(f"cpu:{row[node]}" for row in lines) for node in range(len(lines[0])))
    return forecast(with_copies(Cells(routes), copies), costs, "1f1b")


def test_where_messages_cost_nothing_and_all_fits_data_parallelism_has_no_bubble() -> None:
    answer = solve_grid(costs_of(4, weight=0), parse_pools("4"), 8)
    assert answer.best.step_seconds == pytest.approx(2 * 4 * 3.0) == answer.least_seconds
    assert answer.best.forecast.bubble == 0


def test_where_a_device_holds_half_of_the_model_the_answer_is_made_of_pipelines() -> None:
    whole, quarter = 4 * 50, 50
    answer = solve_grid(costs_of(4, memory=whole / 2 + 2 * 10), parse_pools("4"), 8)
    assert [device.state_bytes for device in answer.best.forecast.devices] == [2 * quarter] * 4
    assert answer.best.shape == "2 lines of 2 devices"
    names = dict(answer.alternatives)
    assert not names["data parallel"].forecast.fits
    assert names["one pipeline"].forecast.fits
    assert names["one pipeline"].step_seconds > answer.best.step_seconds


def test_slow_sums_make_a_pipeline_faster_than_data_parallelism() -> None:
    slow = Link(0.0, 10.0)
    answer = solve_grid(costs_of(4, weight=1000, link=slow), parse_pools("4"), 8, copies=1)
    assert answer.best.shape == "a pipeline of 4 devices"


def test_faster_devices_get_more() -> None:
    costs = costs_of(2, weight=0, types={"V100": 1.0, "P100": 4.0})
    answer = solve_grid(costs, parse_pools("V100:1,P100:1"), 5)
    busy = {device.device: device.busy_seconds for device in answer.best.forecast.devices}
    assert busy == {"V100:0": 24.0, "P100:0": 24.0}
    assert answer.best.step_seconds == pytest.approx(24.0)


def test_what_fits_nowhere_is_said_with_what_it_would_need() -> None:
    with pytest.raises(
        SolverError, match=r"does not fit: .* a pipeline of 4 devices needs the least memory, .* and a cpu has 20 bytes"
    ):
        solve_grid(costs_of(4, memory=20), parse_pools("4"), 8)


def test_a_stage_that_takes_twice_as_long_gets_two_devices() -> None:
    """A device holds one stage only; so no line of devices is balanced."""
    times = (1.0, 2.0, 1.0)
    both = TypeCosts(times, times, (0.0,) * 3, 60)
    units = tuple(UnitBytes((stage,), 10, 20, 20) for stage in range(3))
    costs = GridCosts({"cpu": both}, (1,) * 3, (0,) * 3, (1,) * 3, units, FREE)
    search = GridSearch(costs, parse_pools("4"), 24, "1f1b", copies=1)
    best = search.best()
    assert best is not None
    assert [len(best.cells.runners(stage)) for stage in range(3)] == [1, 2, 1]
    assert best.step_seconds < 0.8 * dict(search.alternatives)["one pipeline"].step_seconds


def test_beyond_what_can_be_searched_whole_a_walk_leads_from_the_candidates_to_better_grids() -> None:
    draw = random.Random(1)

    def row() -> tuple[float, ...]:
        return tuple(draw.uniform(0.1, 3.0) for _ in range(5))

    types = {name: TypeCosts(row(), row(), (0.0,) * 5, 100) for name in ("V100", "P100")}
    units = tuple(UnitBytes((stage,), 10, 20, 20) for stage in range(5))
    costs = GridCosts(types, (2,) * 5, (0,) * 5, (1,) * 5, units, Link(0.01, 1000.0))
    pools = parse_pools("V100:2,P100:3")
    candidate = GridSearch(costs, pools, 9, "1f1b", 1).best()
    first, again = (solve_grid(costs, pools, 9, copies=1) for _ in range(2))
    assert first.best == again.best
    assert first.best.forecast.fits
    assert first.best.forecast == forecast(first.best.cells, costs, "1f1b")
    assert first.least_seconds <= first.best.step_seconds
    assert candidate is not None
    assert first.best.step_seconds < 0.95 * candidate.step_seconds


def test_1f1b_keeps_as_many_activations_as_the_way_is_long() -> None:
    step = step_of("0000/1111/2222", costs_of(3, kept=7))
    assert [device.activation_bytes for device in step.devices] == [21, 14, 7]
    assert [device.activation_cells for device in step.devices] == [3, 2, 1]


def test_memory_is_state_and_the_larger_of_activations_and_finished_gradients() -> None:
    few, many = (step_of("00/11", costs_of(2, kept=kept)).devices[0] for kept in (1, 30))
    assert (few.state_bytes, few.memory_bytes) == (50, 50 + 10)
    assert (many.state_bytes, many.memory_bytes) == (50, 50 + 60)


def test_sums_messages_and_shadows_are_traffic_and_take_time() -> None:
    link = Link(1.0, 10.0)
    pipeline = step_of("00/11", costs_of(2, link=link))
    assert [device.sent_bytes for device in pipeline.devices] == [2, 2]
    alone = step_of("00/11", costs_of(2))
    assert pipeline.cells_seconds == pytest.approx(alone.cells_seconds + 2 * 1.1)
    parallel = step_of("01/01", costs_of(2, link=link))
    assert [device.sent_bytes for device in parallel.devices] == [40, 40]  # half of two units' sums, twice
    assert parallel.step_seconds == pytest.approx(parallel.cells_seconds + 2 * (2 * 1.0 + 20 / 10.0))
    shadowed = step_of("00/11", costs_of(2, link=link), copies=2)
    assert [device.sent_bytes for device in shadowed.devices] == [12, 12]
    assert [device.state_bytes for device in shadowed.devices] == [80, 80]
