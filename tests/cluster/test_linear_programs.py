"""Shares of time: known optima, and what must hold for any program."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualflow.cluster.linear_programs import Floats, Program, fewest_seconds, least_ratio, max_min, water_filling

INSTANCES = Path(__file__).parents[2].parent / "shared/data/las_lp/las_instances.json"
instances = json.loads(INSTANCES.read_text()) if INSTANCES.exists() else [None]


def on_types(value: Floats, demand: Floats, capacity: Floats) -> Program:
    """Each job on one type at a time."""
    jobs, types = value.shape
    usage = np.zeros((jobs * types, types))
    usage[np.arange(jobs * types), np.tile(np.arange(types), jobs)] = np.repeat(demand, types)
    return Program(jobs, np.repeat(np.arange(jobs), types), value.ravel(), usage, capacity)


def values_of(program: Program, shares: Floats) -> Floats:
    return np.bincount(program.job, program.value * shares, minlength=program.jobs)


def check(program: Program, shares: Floats) -> None:
    assert (shares >= 0).all()
    assert (np.bincount(program.job, shares, minlength=program.jobs) <= 1 + 1e-7).all()
    assert (shares @ program.usage <= program.capacity + 1e-6).all()


@pytest.mark.skipif(not INSTANCES.exists(), reason="needs ../shared/data/las_lp")
@pytest.mark.parametrize("instance", instances)
def test_every_known_optimum_is_met(instance: dict) -> None:
    speeds = np.array(instance["throughputs"])
    demand, weights = np.array(instance["scale_factors"], float), np.array(instance["priority_weights"], float)
    capacity = np.array([instance["cluster"][name] for name in instance["worker_types"]], float)
    even = speeds @ (capacity / capacity.sum())
    program = on_types(speeds * (demand / weights / even)[:, None], demand, capacity)
    found = max_min(program)
    assert found.objective == pytest.approx(instance["optimal_objective"], abs=1e-6)
    assert values_of(program, found.shares).min() == pytest.approx(found.objective, abs=1e-6)
    check(program, found.shares)
    assert water_filling(program).objective == pytest.approx(instance["optimal_objective"], abs=1e-6)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    jobs, types = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    value = [[draw(st.floats(0.1, 10)) for _ in range(types)] for _ in range(jobs)]
    demand = [float(draw(st.integers(1, 4))) for _ in range(jobs)]
    capacity = [float(draw(st.integers(1, 8))) for _ in range(types)]
    return on_types(np.array(value), np.array(demand), np.array(capacity))


@settings(max_examples=25, deadline=None)
@given(programs(), st.integers(0, 2), st.integers(1, 4))
def test_more_devices_or_fewer_jobs_never_lower_the_objective(program: Program, place: int, more: int) -> None:
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
def test_water_filling_keeps_the_least_and_is_no_worse_for_anyone_in_order(program: Program) -> None:
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


@settings(max_examples=25, deadline=None)
@given(programs(), st.data())
def test_finish_time_fairness_beats_any_other_shares(program: Program, data: st.DataObject) -> None:
    numbers = st.lists(st.floats(1, 1000), min_size=program.jobs, max_size=program.jobs).map(np.array)
    elapsed, work, alone = data.draw(numbers), data.draw(numbers), data.draw(numbers)
    alone = elapsed + alone
    found = least_ratio(program, elapsed, work, alone)
    check(program, found.shares)

    def worst(shares: Floats) -> float:
        speeds = np.maximum(values_of(program, shares), 1e-12)
        return float(((elapsed + work / speeds) / alone).max())

    assert worst(found.shares) == pytest.approx(found.objective, rel=1e-5)
    for other in (max_min(program), fewest_seconds(program, work)):
        assert found.objective <= worst(other.shares) * (1 + 1e-5)


def test_the_makespan_of_two_jobs_on_one_device_is_their_sum() -> None:
    program = on_types(np.array([[2.0], [1.0]]), np.array([1.0, 1.0]), np.array([1.0]))
    assert fewest_seconds(program, np.array([20.0, 5.0])).objective == pytest.approx(15.0)
