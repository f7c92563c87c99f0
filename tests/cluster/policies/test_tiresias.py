"""Tiresias: its paper's example, and its queues."""

from __future__ import annotations

import pytest

from virtualflow.cluster.job import Job
from virtualflow.cluster.messages import JobsRestored, StartJob, SuspendJob, WakeAt
from virtualflow.cluster.policies.tiresias import Tiresias
from virtualflow.cluster.scheduler import Scheduler
from virtualflow.cluster.throughput.model import Profiled
from virtualflow.core.devices import parse_pools
from virtualflow.sim import costs, metrics
from virtualflow.sim.engine import simulate
from virtualflow.sim.result import Run


def run(jobs: list[Job], policy: Tiresias, devices: str = "V100:2") -> Run:
    return simulate(jobs, parse_pools(devices), policy, Profiled(), costs.NONE)


def test_the_papers_three_jobs_take_11_7_on_average() -> None:
    """2, 1 and 2 GPUs for 2, 8 and 6 units of time, on 2 GPUs, in steps of one unit."""
    jobs = [Job("J1", 0.0, 2, 2.0), Job("J2", 1e-9, 1, 8.0), Job("J3", 2e-9, 2, 6.0)]
    result = run(jobs, Tiresias(thresholds=range(1, 13), quantum_seconds=1.0))
    assert metrics.of(result).average_jct_seconds == pytest.approx(11.67, abs=0.01)


def test_a_job_is_interrupted_only_where_it_passes_a_threshold() -> None:
    jobs = [Job("long", 0.0, 2, 5000.0), Job("late", 100.0, 2, 600.0)]
    result = run(jobs, Tiresias(thresholds=(3200.0,)))
    segments = {each.job.id: [(s.start_seconds, s.end_seconds) for s in each.segments] for each in result.jobs}
    assert segments == {"late": [(1600.0, 2200.0)], "long": [(0.0, 1600.0), (2200.0, 5600.0)]}


def test_in_a_queue_the_first_to_come_goes_first_and_small_ones_fill_up() -> None:
    jobs = [Job("a", 0.0, 1, 100.0), Job("b", 1.0, 2, 100.0), Job("c", 2.0, 1, 50.0)]
    result = run(jobs, Tiresias())
    assert {each.job.id: each.start_seconds for each in result.jobs} == {"a": 0.0, "c": 2.0, "b": 100.0}


def test_service_attained_under_an_earlier_scheduler_counts() -> None:
    """One job has had 4,000 device-seconds, which is beyond the first queue's threshold: the new one goes first."""
    brain = Scheduler(parse_pools("V100:1"), Tiresias(), Profiled())
    old, new = Job("old", 0.0, 1, 1e6), Job("new", 1.0, 1, 1e6)
    actions = brain.handle(JobsRestored(10.0, ((old, ("V100:0",)),), (new,), attained={"old": 4000.0}))
    assert actions == [SuspendJob("old"), StartJob("new", ("V100:0",)), WakeAt(10.0 + 3200.0)]
    assert brain.jobs["old"].attained(10.0) == 4000.0


def test_without_service_from_before_the_older_job_keeps_its_device() -> None:
    brain = Scheduler(parse_pools("V100:1"), Tiresias(), Profiled())
    old, new = Job("old", 0.0, 1, 1e6), Job("new", 1.0, 1, 1e6)
    assert brain.handle(JobsRestored(10.0, ((old, ("V100:0",)),), (new,))) == [WakeAt(10.0 + 3200.0)]
    assert brain.jobs["old"].attained(12.0) == 2.0
