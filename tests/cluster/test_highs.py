"""The max-min program: the optimum on any program, and the same one whatever was solved before."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from virtualflow.cluster import highs
from virtualflow.cluster.linear_programs import LinearProgram, max_min


@st.composite
def programs(draw: st.DrawFn, values: st.SearchStrategy[float]) -> LinearProgram:
    """Columns of one type or of several, some worth nothing, and types of which there are no devices."""
    jobs, types = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    columns = [draw(st.integers(1, 5)) for _ in range(jobs)]
    value = [draw(values) for _ in range(sum(columns))]
    usage = [[float(draw(st.integers(0, 4))) for _ in range(types)] for _ in value]
    capacity = [float(draw(st.integers(0, 8))) for _ in range(types)]
    job = np.repeat(np.arange(jobs), columns)
    return LinearProgram(jobs, job, np.array(value), np.array(usage), np.array(capacity))


def crowded(jobs: int) -> LinearProgram:
    """Many jobs that want few devices of three types."""
    chance = np.random.default_rng(jobs)
    usage = np.tile(np.eye(3), (jobs, 1)) * chance.choice([1.0, 2.0, 4.0], size=jobs).repeat(3)[:, None]
    value = chance.lognormal(size=3 * jobs)
    capacity = np.array([jobs / 8, jobs / 4, jobs / 2])
    return LinearProgram(jobs, np.arange(jobs).repeat(3), value, usage, capacity)


def by_scipy(program: LinearProgram) -> float:
    """The same optimum, from a dense matrix and without a start."""
    columns = np.arange(len(program.job))
    rows = np.zeros((2 * program.jobs + len(program.capacity), len(columns) + 1))
    rows[: program.jobs, 0] = 1.0
    rows[program.job, 1 + columns] = -program.value
    rows[program.jobs + program.job, 1 + columns] = 1.0
    rows[2 * program.jobs :, 1:] = program.usage.T
    limits = np.concatenate((np.zeros(program.jobs), np.ones(program.jobs), program.capacity))
    cost = np.zeros(len(columns) + 1)
    cost[0] = -1.0
    return -float(linprog(cost, A_ub=rows, b_ub=limits, bounds=(0, None), method="highs").fun)


def check(program: LinearProgram) -> None:
    result, objective = max_min(program), by_scipy(program)
    assert result.objective == pytest.approx(objective, rel=1e-6, abs=1e-7)
    values = np.bincount(program.job, program.value * result.shares, minlength=program.jobs)
    assert values.min() == pytest.approx(objective, rel=1e-6, abs=1e-7)
    assert (np.bincount(program.job, result.shares) <= 1 + 1e-7).all()
    assert (result.shares @ program.usage <= program.capacity + 1e-6).all()


@settings(max_examples=200, deadline=None)
@given(programs(st.floats(0.01, 100)))
def test_the_optimum_is_that_of_a_general_solver(program: LinearProgram) -> None:
    check(program)


@settings(max_examples=200, deadline=None)
@given(programs(st.sampled_from((0.0, 1.0, 2.0))))
def test_ties_and_columns_that_are_worth_nothing_do_not_change_the_optimum(program: LinearProgram) -> None:
    check(program)


@pytest.mark.parametrize("jobs", [2, 10, 40, 127, 128, 129, 300])
def test_the_optimum_is_found_at_any_number_of_jobs(jobs: int) -> None:
    check(crowded(jobs))


@pytest.mark.parametrize("factor", [1e-9, 1e-3, 1e6])
def test_the_optimum_does_not_depend_on_the_unit_of_values(factor: float) -> None:
    program = crowded(20)
    scaled = LinearProgram(20, program.job, factor * program.value, program.usage, program.capacity)
    assert max_min(scaled).objective == pytest.approx(factor * max_min(program).objective, rel=1e-9)
    assert max_min(scaled).shares == pytest.approx(max_min(program).shares, abs=1e-8)


def test_the_same_program_has_the_same_shares_whatever_was_solved_before() -> None:
    program = crowded(30)
    first = highs.solve(program)
    for jobs in (2, 31, 150):
        highs.solve(crowded(jobs))
        assert np.array_equal(highs.solve(program).shares, first.shares)


def test_threads_have_solvers_of_their_own() -> None:
    alone = [highs.solve(crowded(jobs)).level for jobs in range(2, 40)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda jobs: highs.solve(crowded(jobs)).level, range(2, 40))) == alone


def test_a_job_that_can_run_nowhere_makes_the_level_0() -> None:
    program = LinearProgram(2, np.array([0, 1]), np.array([0.0, 1.0]), np.ones((2, 1)), np.array([1.0]))
    assert max_min(program).objective == 0.0


@settings(max_examples=100, deadline=None)
@given(programs(st.sampled_from((0.0, 1.0, 2.0))))
def test_no_time_goes_to_columns_that_are_worth_nothing(program: LinearProgram) -> None:
    assert not highs.solve(program).shares[program.value == 0].any()


def test_only_jobs_that_hold_the_level_down_have_a_price() -> None:
    """One device each: the first job is slow there, the second fast."""
    program = LinearProgram(2, np.array([0, 1]), np.array([1.0, 5.0]), np.eye(2), np.array([1.0, 1.0]))
    assert highs.solve(program).prices == pytest.approx([1.0, 0.0])


def test_fixed_values_are_kept_and_the_others_share_the_rest() -> None:
    program = LinearProgram(3, np.arange(3), np.ones(3), np.ones((3, 1)), np.array([2.0]))
    result = highs.solve(program, np.array([0.2, np.nan, np.nan]))
    assert result.level == pytest.approx(0.9)
    assert result.shares[0] >= 0.2 - 1e-9


def test_the_start_loads_devices_evenly() -> None:
    """Two equal jobs and two equal types: one job each."""
    usage = np.tile(np.eye(2), (2, 1))
    program = LinearProgram(2, np.array([0, 0, 1, 1]), np.ones(4), usage, np.ones(2))
    assert highs.even_load(program) == [0, 3]
