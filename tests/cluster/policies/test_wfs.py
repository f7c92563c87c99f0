"""Weighted fair sharing, one decision at a time: a snapshot in, grants out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from virtualflow.cluster.job import Job, ScheduledJob
from virtualflow.cluster.policies.base import Grant, Options
from virtualflow.cluster.policies.wfs import Sjf, Srtf, Wfs
from virtualflow.cluster.snapshot import Snapshot
from virtualflow.cluster.throughput.table import Table
from virtualflow.cluster.waiting import Queue

# "any" runs on both types, twice as fast on V100; "wide" on K80 only; "flat" gains nothing beyond two.
SPEEDS = Table(
    {
        "v100": {("flat", 1): 1.0, ("flat", 2): 1.8, ("flat", 4): 1.81, ("flat", 8): 1.81}
        | {("any", count): 2.0 * count for count in (1, 2, 4, 8)}
        | {("wide", count): 0.0 for count in (1, 2, 4, 8)},
        "k80": {(name, count): 1.0 * count for name in ("any", "wide") for count in (1, 2, 4, 8)},
    },
    {},
)


def waiting(
    name: str, demand: int, priority: float = 1.0, *, arrival: float = 0.0, workload: str = "any"
) -> ScheduledJob:
    return ScheduledJob(Job(name, arrival, demand, 100.0, workload, priority=priority))


def running(job: ScheduledJob, **counts: int) -> ScheduledJob:
    devices = tuple(f"{name}:{number}" for name, count in counts.items() for number in range(count))
    job.change(0.0, devices, counts, None)
    return job


def needing(job: ScheduledJob, minimum: int) -> ScheduledJob:
    job.job = replace(job.job, min=minimum)
    return job


def decide(
    *jobs: ScheduledJob,
    policy: Wfs | None = None,
    **capacity: int,
) -> dict[str, Grant]:
    """The grants of one decision."""
    policy = policy or Wfs()
    has = {job.id: job for job in jobs if job.devices}
    free = {name: count - sum(job.counts.get(name, 0) for job in has.values()) for name, count in capacity.items()}
    queue = Queue()
    lacking = sum(max(0, job.job.demand - job.allocation) for job in has.values())
    sizes = {name: (count,) for name, count in capacity.items()}
    snapshot = Snapshot(1.0, capacity, free, has, queue, lacking, SPEEDS, sizes, jobs_changed=True)
    for job in jobs:
        if not job.devices:
            queue.add(policy.order(job, snapshot), job)
    return dict(policy.allocate(snapshot).grants)


def test_where_all_fit_every_job_has_its_demand() -> None:
    assert decide(waiting("a", 2), waiting("b", 1), V100=4) == {"a": Grant.of(2), "b": Grant.of(1)}


def test_devices_are_shared_by_priority() -> None:
    grants = decide(running(waiting("low", 8, 1.0), V100=8), waiting("high", 8, 3.0), V100=8)
    assert grants == {"low": Grant.of(2), "high": Grant.of(6)}


def test_what_a_small_demand_leaves_over_is_shared_again() -> None:
    assert decide(waiting("small", 1, 5.0), waiting("large", 8, 1.0), V100=8) == {
        "small": Grant.of(1),
        "large": Grant.of(7),
    }


def test_a_running_job_expands_into_free_devices() -> None:
    assert decide(running(waiting("a", 4), V100=2), V100=4) == {"a": Grant.of(4)}


def test_nothing_changes_while_every_job_has_its_share() -> None:
    assert decide(running(waiting("a", 4), V100=2), running(waiting("b", 4), V100=2), V100=4) == {}


def test_a_job_of_the_same_priority_is_admitted_at_the_cost_of_others() -> None:
    assert decide(running(waiting("a", 4), V100=4), waiting("b", 4), V100=4) == {
        "a": Grant.of(2),
        "b": Grant.of(2),
    }


def test_no_job_of_higher_priority_loses_a_device_to_a_new_one() -> None:
    assert decide(running(waiting("high", 4, 9.0), V100=4), waiting("low", 4, 1.0), V100=4) == {}


def test_a_job_of_higher_priority_takes_devices_from_a_lower_one() -> None:
    grants = decide(running(waiting("low", 4, 1.0), V100=4), waiting("high", 3, 9.0), V100=4)
    assert grants == {"low": Grant.of(1), "high": Grant.of(3)}


def test_with_one_device_each_nobody_can_be_admitted() -> None:
    jobs = [running(waiting(str(n), 4), V100=1) for n in range(4)]
    assert decide(*jobs, waiting("more", 1, 9.0), V100=4) == {}


def test_a_job_is_not_admitted_below_its_minimum() -> None:
    high = needing(running(waiting("runs", 4, 1.0), V100=3), 3)
    assert decide(high, needing(waiting("waits", 2), 2), V100=4) == {"runs": Grant.of(4)}


def test_a_job_that_the_cluster_is_too_small_for_holds_nobody_up() -> None:
    assert decide(needing(waiting("huge", 8, 9.0), 8), waiting("small", 1), V100=4) == {"small": Grant.of(1)}


def test_powers_of_two_are_kept_where_they_are_asked_for() -> None:
    policy = Wfs(Options(round="pow2"))
    grants = decide(waiting("a", 8, 1.0), waiting("b", 8, 2.0), policy=policy, V100=8)
    assert all(sum(grant.counts.values()) in (1, 2, 4, 8) for grant in grants.values())


def test_lost_devices_are_paid_for_by_the_lowest_priority() -> None:
    policy, low, high = Wfs(), running(waiting("low", 2, 1.0), V100=2), running(waiting("high", 2, 9.0), V100=2)
    assert decide(low, high, policy=policy, V100=4) == {}
    assert decide(low, running(high, V100=1), policy=policy, V100=3) == {"low": Grant.of(1), "high": Grant.of(2)}


def test_a_job_that_can_use_one_type_only_is_given_that_type() -> None:
    assert decide(waiting("wide", 2, workload="wide"), V100=2, K80=2) == {"wide": Grant({"K80": 2})}


def test_where_everybody_can_use_every_type_devices_are_only_counted() -> None:
    assert decide(waiting("a", 2), waiting("b", 1), V100=2, K80=2) == {"a": Grant.of(2), "b": Grant.of(1)}


def test_beside_a_job_that_can_use_one_type_only_grants_name_their_types() -> None:
    wide = running(waiting("wide", 2, workload="wide"), K80=2)
    assert decide(wide, waiting("any", 2), V100=2, K80=2) == {"any": Grant({"V100": 2})}


def test_more_than_there_is_of_all_types_is_shared() -> None:
    grants = decide(waiting("a", 4), waiting("b", 4), V100=2, K80=2)
    assert {name: sum(grant.counts.values()) for name, grant in grants.items()} == {"a": 2, "b": 2}


def test_a_job_that_can_use_any_type_makes_room_for_one_that_can_not() -> None:
    grants = decide(running(waiting("any", 2), K80=2), waiting("wide", 2, workload="wide"), V100=2, K80=2)
    assert grants == {"any": Grant({"V100": 2}), "wide": Grant({"K80": 2})}


def test_a_running_job_moves_to_free_devices_of_a_faster_type() -> None:
    assert decide(running(waiting("a", 2), K80=2), V100=2, K80=2) == {"a": Grant({"V100": 2})}


def test_shortest_job_first_weighs_by_the_whole_job() -> None:
    short = ScheduledJob(Job("short", 0.0, 4, 10.0, "any"))
    long = ScheduledJob(Job("long", 0.0, 4, 1000.0, "any"))
    assert decide(running(long, V100=4), short, policy=Sjf(), V100=4) == {"long": Grant.of(1), "short": Grant.of(3)}


@pytest.mark.parametrize(("steps_done", "first"), [(0.0, "new"), (990.0, "old")])
def test_shortest_remaining_time_first_weighs_by_what_is_left(steps_done: float, first: str) -> None:
    old = ScheduledJob(Job("old", 0.0, 1, 1000.0, "any"), steps_done=steps_done)
    new = ScheduledJob(Job("new", 0.0, 1, 100.0, "any"))
    assert list(decide(new, old, policy=Srtf(), V100=1)) == [first]


USEFUL = Options(useful=True)


def test_a_job_stops_growing_where_another_device_brings_nothing() -> None:
    jobs = waiting("flat", 8, workload="flat"), waiting("any", 8)
    assert decide(*jobs, V100=8) == {"flat": Grant.of(4), "any": Grant.of(4)}  # the paper's fair shares
    assert decide(*jobs, policy=Wfs(USEFUL), V100=8) == {"flat": Grant.of(2), "any": Grant.of(6)}


def test_devices_that_help_nobody_stay_idle() -> None:
    assert decide(waiting("flat", 8, workload="flat"), policy=Wfs(USEFUL), V100=8) == {"flat": Grant.of(2)}


def test_what_is_left_goes_to_the_highest_priority_that_gains_by_it() -> None:
    jobs = (
        running(waiting("flat", 8, 9.0, workload="flat"), V100=6),
        running(waiting("high", 8, 2.0, arrival=1.0), V100=1),
        running(waiting("low", 8, 1.0), V100=1),
    )
    assert decide(*jobs, policy=Wfs(USEFUL), V100=9) == {"flat": Grant.of(2), "high": Grant.of(6)}


def test_where_all_gain_alike_the_shares_are_the_papers() -> None:
    jobs = waiting("a", 8, 1.0), waiting("b", 8, 3.0)
    assert decide(*jobs, policy=Wfs(USEFUL), V100=8) == decide(*jobs, V100=8)
