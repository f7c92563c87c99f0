"""Shares of time: known optima, and what must hold for any program."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualflow.cluster.linear_programs import (
    Floats,
    LinearProgram,
    max_min,
    min_makespan,
    min_max_ratio,
    water_filling,
)

# Made with Gavel's formulation and its published speeds (MIT); two solvers agree on each optimum.
instances = json.loads(Path(__file__).with_name("las_programs.json").read_text())


def on_types(value: Floats, demand: Floats, capacity: Floats) -> LinearProgram:
    """Each job on one type at a time."""
    jobs, types = value.shape
    usage = np.zeros((jobs * types, types))
    usage[np.arange(jobs * types), np.tile(np.arange(types), jobs)] = np.repeat(demand, types)
    return LinearProgram(jobs, np.repeat(np.arange(jobs), types), value.ravel(), usage, capacity)


def values_of(program: LinearProgram, shares: Floats) -> Floats:
    return np.bincount(program.job, program.value * shares, minlength=program.jobs)


def check(program: LinearProgram, shares: Floats) -> None:
    assert (shares >= 0).all()
    assert (np.bincount(program.job, shares, minlength=program.jobs) <= 1 + 1e-7).all()
    assert (shares @ program.usage <= program.capacity + 1e-6).all()


@pytest.mark.parametrize("instance", instances, ids=lambda instance: f"{len(instance['throughputs'])} jobs")
def test_every_known_optimum_is_met(instance: dict) -> None:
    speeds = np.array(instance["throughputs"])
    demand, weights = np.array(instance["scale_factors"], float), np.array(instance["priority_weights"], float)
    capacity = np.array([instance["cluster"][name] for name in instance["worker_types"]], float)
    even = speeds @ (capacity / capacity.sum())
    program = on_types(speeds * (demand / weights / even)[:, None], demand, capacity)
    result = max_min(program)
    assert result.objective == pytest.approx(instance["optimal_objective"], abs=1e-6)
    assert values_of(program, result.shares).min() == pytest.approx(result.objective, abs=1e-6)
    check(program, result.shares)
    assert water_filling(program).objective == pytest.approx(instance["optimal_objective"], abs=1e-6)


@st.composite
def programs(draw: st.DrawFn) -> LinearProgram:
    jobs, types = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    value = [[draw(st.floats(0.1, 10)) for _ in range(types)] for _ in range(jobs)]
    demand = [float(draw(st.integers(1, 4))) for _ in range(jobs)]
    capacity = [float(draw(st.integers(1, 8))) for _ in range(types)]
    return on_types(np.array(value), np.array(demand), np.array(capacity))


@settings(max_examples=25, deadline=None)
@given(programs(), st.integers(0, 2), st.integers(1, 4))
def test_more_devices_or_fewer_jobs_never_lower_the_objective(program: LinearProgram, place: int, more: int) -> None:
    before = max_min(program)
    check(program, before.shares)
    capacity = program.capacity.copy()
    capacity[place % len(capacity)] += more
    assert max_min(replace(program, capacity=capacity)).objective >= before.objective - 1e-7
    if program.jobs > 1:
        kept = program.job < program.jobs - 1
        fewer = replace(
            program,
            jobs=program.jobs - 1,
            job=program.job[kept],
            value=program.value[kept],
            usage=program.usage[kept],
        )
        assert max_min(fewer).objective >= before.objective - 1e-7


@settings(max_examples=25, deadline=None)
@given(programs())
def test_water_filling_keeps_the_least_and_is_no_worse_for_anyone_in_order(program: LinearProgram) -> None:
    least, filled = max_min(program), water_filling(program)
    check(program, filled.shares)
    assert filled.objective == pytest.approx(least.objective, rel=1e-5)
    first, second = np.sort(values_of(program, least.shares)), np.sort(values_of(program, filled.shares))
    above = np.flatnonzero(second > first + 1e-4)
    below = np.flatnonzero(second < first - 1e-4)
    assert not len(below) or (len(above) and above[0] < below[0])  # the first difference is for the better


def test_water_filling_gives_the_second_job_what_the_first_cannot_use() -> None:
    # Two devices of one type: the first job can use one, and is slow; the other three share what is left.
    program = on_types(np.array([[0.2], [1.0], [1.0]]), np.array([1.0, 1.0, 1.0]), np.array([2.0]))
    assert values_of(program, water_filling(program).shares) == pytest.approx([0.2, 0.5, 0.5], abs=1e-5)


def worst_ratio(program: LinearProgram, shares: Floats, elapsed: Floats, work: Floats, alone: Floats) -> float:
    speeds = np.maximum(values_of(program, shares), 1e-12)
    return float(((elapsed + work / speeds) / alone).max())


def smallest_ratio(program: LinearProgram, elapsed: Floats, work: Floats, alone: Floats) -> float:
    """By bisection: a ratio can be reached if all jobs can have the speeds that it needs."""
    low, high = float((elapsed / alone).max()), 1e9
    while high > low * (1 + 1e-12):
        ratio = (low + high) / 2
        if ratio in (low, high):
            break
        needed = work / np.maximum(ratio * alone - elapsed, 1e-300)
        reachable = max_min(replace(program, value=program.value / needed[program.job])).objective >= 1
        low, high = (low, ratio) if reachable else (ratio, high)
    return high


@settings(max_examples=25, deadline=None)
@given(programs(), st.data())
def test_finish_time_fairness_is_the_smallest_ratio_that_can_be_reached(
    program: LinearProgram, data: st.DataObject
) -> None:
    numbers = st.lists(st.floats(1, 1000), min_size=program.jobs, max_size=program.jobs).map(np.array)
    elapsed, work, alone = data.draw(numbers), data.draw(numbers), data.draw(numbers)
    alone = elapsed + alone
    result = min_max_ratio(program, elapsed, work, alone)
    check(program, result.shares)
    # The shares hold their limits up to the solver's tolerance, and what is left of a little job feels that most.
    assert worst_ratio(program, result.shares, elapsed, work, alone) == pytest.approx(result.objective, rel=1e-4)
    assert result.objective == pytest.approx(smallest_ratio(program, elapsed, work, alone), rel=1e-6)


def test_finish_time_fairness_does_not_stop_where_programs_gain_little() -> None:
    """All three jobs reach a ratio of 1 at once, and there time, devices and ratios are all tight."""
    program = on_types(np.array([[2.0], [1.0], [1.0]]), np.array([2.0, 1.0, 1.0]), np.array([3.0]))
    elapsed, work = np.array([1.0, 8.0, 1.0]), np.array([1.0, 1.0, 2.0])
    result = min_max_ratio(program, elapsed, work, np.array([2.0, 9.0, 3.0]))
    assert result.objective == pytest.approx(1.0, rel=1e-9)


def test_where_all_jobs_fit_finish_time_fairness_is_their_best_speeds() -> None:
    program = on_types(np.array([[2.0], [1.0]]), np.array([1.0, 1.0]), np.array([2.0]))
    result = min_max_ratio(program, np.array([0.0, 3.0]), np.array([4.0, 3.0]), np.array([2.0, 3.0]))
    assert result.objective == 2.0
    assert result.shares.tolist() == [1.0, 1.0]


def test_the_makespan_of_two_jobs_on_one_device_is_their_sum() -> None:
    program = on_types(np.array([[2.0], [1.0]]), np.array([1.0, 1.0]), np.array([1.0]))
    assert min_makespan(program, np.array([20.0, 5.0])).objective == pytest.approx(15.0)
