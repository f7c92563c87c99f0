"""What a policy can ask of the cluster at one moment."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from virtualflow.cluster.job import Job, ScheduledJob
from virtualflow.cluster.snapshot import Snapshot
from virtualflow.cluster.throughput.table import Table
from virtualflow.cluster.waiting import Queue

# "any" runs on both types, twice as fast on V100; "wide" on K80 only.
SPEEDS = Table(
    {
        "v100": {("any", 1): 2.0, ("any", 4): 8.0, ("wide", 1): 0.0, ("wide", 4): 0.0},
        "k80": {("any", 1): 1.0, ("any", 4): 4.0, ("wide", 1): 1.0, ("wide", 4): 4.0},
    },
    {},
)
CAPACITY = {"v100": 2, "k80": 4}


def snapshot(**facts: object) -> Snapshot:
    """Two V100 and four K80, of which one is lost; nobody runs."""
    sizes = {"v100": (2,), "k80": (4, 1)}
    empty = Snapshot(10.0, CAPACITY, dict(CAPACITY), {}, Queue(), 0, SPEEDS, sizes, True, start_seconds=5.0)
    return replace(empty, **facts)


def job(demand: int, workload: str = "any", min: int = 1) -> Job:
    return Job("a", 0.0, demand, 100.0, workload, min=min)


def test_devices_and_idle_ones_are_counted_over_all_types() -> None:
    seen = snapshot(free={"v100": 0, "k80": 3})
    assert (seen.devices, seen.idle) == (6, 3)


def test_running_jobs_come_before_waiting_ones() -> None:
    queue = Queue()
    queue.add((0,), ScheduledJob(replace(job(1), id="waits")))
    seen = snapshot(running={"runs": ScheduledJob(replace(job(1), id="runs"))}, queue=queue)
    assert [state.id for state in seen.jobs()] == ["runs", "waits"]


@pytest.mark.parametrize(
    ("workload", "least", "is_within_reach"),
    [("any", 6, True), ("any", 7, False), ("wide", 4, True), ("wide", 5, False)],
)
def test_a_minimum_is_within_reach_if_the_types_that_a_job_can_use_have_it(
    workload: str, least: int, is_within_reach: bool
) -> None:
    assert snapshot().within_reach(job(8, workload, least)) == is_within_reach


def test_where_there_is_one_type_every_job_uses_it() -> None:
    seen = snapshot(capacity={"v100": 2}, free={"v100": 2})
    assert seen.types_for(job(1, "wide")) == ["v100"]
    assert seen.within_reach(job(2, "wide", 2))


@pytest.mark.parametrize(
    ("wanted", "have", "free", "taken"),
    [
        (job(3), 0, {"v100": 2, "k80": 4}, {"v100": 2, "k80": 1}),
        (job(3, "wide"), 0, {"v100": 2, "k80": 4}, {"k80": 3}),
        (job(3), 2, {"v100": 0, "k80": 4}, {"k80": 1}),
        (job(9), 0, {"v100": 2, "k80": 4}, {"v100": 2, "k80": 4}),  # content with all that there is
        (job(9, min=7), 0, {"v100": 2, "k80": 4}, None),
        (job(3), 3, {"v100": 2, "k80": 4}, None),
        (job(3), 0, {"v100": 1, "k80": 1}, None),
    ],
)
def test_a_job_is_filled_up_from_the_types_that_it_can_use_in_the_clusters_order(
    wanted: Job, have: int, free: dict[str, int], taken: dict[str, int] | None
) -> None:
    left = {name: count - (taken or {}).get(name, 0) for name, count in free.items()}
    assert snapshot().fill(wanted, wanted.demand, free, have=have) == taken
    assert free == left


def test_a_speed_is_that_of_the_demand_where_a_job_can_run_and_0_elsewhere() -> None:
    seen = snapshot()
    assert seen.steps_per_second(job(1), "v100") == 2.0
    assert seen.steps_per_second(job(4), "v100", 1) == 2.0
    assert seen.steps_per_second(job(4), "v100") == 4.0  # of which there are two
    assert seen.steps_per_second(job(1, "wide"), "v100") == 0.0
    assert seen.fastest(job(1)) == 2.0
    assert seen.fastest(job(1, "wide")) == 1.0


def test_a_job_that_gets_devices_now_ends_after_its_start_and_its_steps() -> None:
    assert snapshot().end_seconds(ScheduledJob(job(1)), {"v100": 1}) == 10.0 + 5.0 + 100.0 / 2.0


def test_a_job_that_runs_has_its_start_behind_it() -> None:
    state = ScheduledJob(job(1))
    state.change(2.0, ("v100:0",), {"v100": 1}, None)
    assert snapshot().end_seconds(state, {"v100": 1}) == 10.0 + 100.0 / 2.0


def test_a_job_that_can_not_run_somewhere_never_ends_there() -> None:
    assert snapshot().end_seconds(ScheduledJob(job(1, "wide")), {"v100": 1}) == math.inf
