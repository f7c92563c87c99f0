"""Small programs without a general solver: its optimum, on any program."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualflow.cluster import simplex
from virtualflow.cluster.linear_programs import Program, by_highs, max_min


@st.composite
def programs(draw: st.DrawFn, values: st.SearchStrategy[float]) -> Program:
    """Columns of one type or of several, some worth nothing, and types of which there are no devices."""
    jobs, types = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    columns = [draw(st.integers(1, 5)) for _ in range(jobs)]
    value = [draw(values) for _ in range(sum(columns))]
    usage = [[float(draw(st.integers(0, 4))) for _ in range(types)] for _ in value]
    capacity = [float(draw(st.integers(0, 8))) for _ in range(types)]
    return Program(jobs, np.repeat(np.arange(jobs), columns), np.array(value), np.array(usage), np.array(capacity))


def check(program: Program) -> None:
    found, (objective, _) = max_min(program), by_highs(program)
    assert found.objective == pytest.approx(objective, rel=1e-6, abs=1e-7)
    values = np.bincount(program.job, program.value * found.shares, minlength=program.jobs)
    assert values.min() == pytest.approx(objective, rel=1e-6, abs=1e-7)
    assert (np.bincount(program.job, found.shares) <= 1 + 1e-7).all()
    assert (found.shares @ program.usage <= program.capacity + 1e-6).all()


@settings(max_examples=200, deadline=None)
@given(programs(st.floats(0.01, 100)))
def test_the_optimum_is_that_of_the_general_solver(program: Program) -> None:
    check(program)


@settings(max_examples=200, deadline=None)
@given(programs(st.sampled_from((0.0, 1.0, 2.0))))
def test_it_is_so_with_ties_and_with_columns_that_are_worth_nothing(program: Program) -> None:
    check(program)


@pytest.mark.parametrize("jobs", [2, 10, 40, 128])
def test_few_exchanges_are_enough_where_many_jobs_want_few_devices(jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = np.random.default_rng(jobs)
    usage = np.tile(np.eye(3), (jobs, 1)) * chance.choice([1.0, 2.0, 4.0], size=jobs).repeat(3)[:, None]
    value = chance.lognormal(size=3 * jobs)
    program = Program(jobs, np.arange(jobs).repeat(3), value, usage, np.array([jobs / 8, jobs / 4, jobs / 2]))
    objective, _ = by_highs(program)
    monkeypatch.setattr("virtualflow.cluster.linear_programs.by_highs", lambda _: pytest.fail("HiGHS was asked"))
    assert max_min(program).objective == pytest.approx(objective, rel=1e-6)


def test_a_job_that_can_run_nowhere_is_left_to_the_general_solver() -> None:
    program = Program(2, np.array([0, 1]), np.array([0.0, 1.0]), np.ones((2, 1)), np.array([1.0]))
    assert simplex.max_min(program) is None
    assert max_min(program).objective == 0.0
