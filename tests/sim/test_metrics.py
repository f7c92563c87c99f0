"""The figures."""

from __future__ import annotations

import pytest

from virtualflow.cluster.job import Job
from virtualflow.cluster.policies import registry
from virtualflow.cluster.throughput.model import Profiled
from virtualflow.core.devices import parse_pools
from virtualflow.sim import costs, metrics
from virtualflow.sim.engine import simulate


def test_figures_of_a_run_that_can_be_counted_by_hand() -> None:
    jobs = [Job("A", 0.0, 1, 10.0), Job("B", 0.0, 1, 20.0), Job("C", 5.0, 1, 10.0), Job("D", 6.0, 2, 10.0)]
    found = metrics.of(simulate(jobs, parse_pools("V100:2"), registry.make("fifo"), Profiled(), costs.NONE))
    # A 0-10, B 0-20, C 10-20, D 20-30
    assert found.average_jct_seconds == (10 + 20 + 15 + 24) / 4
    assert found.median_jct_seconds == 20.0  # the upper one of 15 and 20
    assert found.tail_jct_seconds == 24.0
    assert found.makespan_seconds == 30.0
    assert found.median_queueing_seconds == 5.0
    assert found.utilization == found.productive == 1.0
    assert found.resizes == 0


def test_fairness_is_one_when_all_are_slowed_down_alike() -> None:
    assert metrics.jain([2.0, 2.0, 2.0]) == 1.0
    assert metrics.jain([1.0, 0.0]) == 0.5


def test_intervals_over_seeds() -> None:
    assert metrics.interval([5.0]) == metrics.Interval(5.0, None)
    found = metrics.interval([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.half_width == pytest.approx(4.303 / 3**0.5)
