"""The figures."""

from __future__ import annotations

import statistics

import pytest

from virtualflow.cluster.job import Job
from virtualflow.cluster.policies import registry
from virtualflow.cluster.throughput.model import Profiled
from virtualflow.core.devices import parse_pools
from virtualflow.sim import costs, metrics
from virtualflow.sim.engine import simulate


def test_figures_of_a_run_that_can_be_counted_by_hand() -> None:
    jobs = [Job("A", 0.0, 1, 10.0), Job("B", 0.0, 1, 20.0), Job("C", 5.0, 1, 10.0), Job("D", 6.0, 2, 10.0)]
    result = metrics.of(simulate(jobs, parse_pools("V100:2"), registry.make("fifo"), Profiled(), costs.NONE))
    # A 0-10, B 0-20, C 10-20, D 20-30
    assert result.average_jct_seconds == (10 + 20 + 15 + 24) / 4
    assert result.median_jct_seconds == 20.0  # the upper one of 15 and 20
    assert result.tail_jct_seconds == 24.0
    assert result.makespan_seconds == 30.0
    assert result.median_queueing_seconds == 5.0
    assert result.utilization == result.productive == 1.0
    assert result.resizes == 0


def test_fairness_is_one_when_all_are_slowed_down_alike() -> None:
    assert metrics.jain([2.0, 2.0, 2.0]) == 1.0
    assert metrics.jain([1.0, 0.0]) == 0.5


def test_one_seed_has_no_interval() -> None:
    assert metrics.interval([5.0]) == metrics.Interval(5.0, None)


@pytest.mark.parametrize(("seeds", "quantile"), [(2, 12.7062), (3, 4.3027), (20, 2.0930), (100, 1.9842)])
def test_intervals_over_seeds_are_those_of_students_t(seeds: int, quantile: float) -> None:
    values = [float(seed % 2) for seed in range(seeds)]
    result = metrics.interval(values)
    assert result.mean == statistics.mean(values)
    assert result.half_width == pytest.approx(quantile * statistics.stdev(values) / seeds**0.5, rel=1e-4)
