"""The guarantees of docs/how-to/write-a-policy.md, under losses, returns and changed priorities, demands, minimums."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.sim import disturbed
from tests.sim.disturbed import TABLE, Trial, trials
from tests.sim.test_invariants import Watched, assert_nobody_shrinks_for_a_lower_priority
from virtualflow.cluster.job import ScheduledJob
from virtualflow.cluster.messages import DevicesLost, Event, JobChanged
from virtualflow.cluster.policies import registry
from virtualflow.cluster.policies.base import Options
from virtualflow.cluster.scheduler import Scheduler
from virtualflow.cluster.snapshot import Snapshot

EVERY = {
    **{name: (name, Options()) for name in registry.BUILT_IN},
    "wfs-pow2": ("wfs", Options(round="pow2")),
    "priority-backfill": ("priority", Options(backfill=True)),
    "fifo-backfill": ("fifo", Options(backfill=True)),
    "las-gavel": ("las", Options(compat="gavel")),
    "ftf-gavel": ("ftf", Options(compat="gavel")),
    "las-paper": ("las", Options(compat="paper")),
}
GAVEL = ("las", "las-agnostic", "las-mixed", "las-mixed-columns", "water-filling", "ftf", "makespan")
ELASTIC = ("wfs", "sjf", "srtf")
EXAMPLES = 25


def nothing_is_given_twice_or_to_those_who_cannot_use_it(scheduler: Scheduler, event: Event) -> None:
    placement, jobs = scheduler.placement, scheduler.jobs
    snapshot = scheduler.snapshot()
    owned = [device for state in jobs.values() if state.host is None for device in state.devices]
    assert len(owned) == len(set(owned))
    assert placement.lost.isdisjoint(owned)
    assert len(owned) + snapshot.idle + len(placement.lost) == len(placement.devices)
    assert snapshot.devices == len(placement.devices) - len(placement.lost)
    for state in jobs.values():
        assert bool(state.devices) == (state.id in snapshot.running)
        if state.devices:
            assert state.job.min <= state.allocation <= state.job.demand
            assert all(TABLE.usable(state.job, placement.type_of(device)) for device in state.devices)
        if state.host is not None:
            assert set(state.devices) <= set(jobs[state.host].devices)
            assert jobs[state.host].host is None
            assert state.id in jobs[state.host].co_located
        assert len(state.co_located) <= 1
    assert {state.id for state in snapshot.jobs()} == set(jobs)
    assert snapshot.lacking == sum(state.job.demand - state.allocation for state in snapshot.running.values())


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=EXAMPLES, deadline=None)
@given(trial=trials())
def test_nobody_raises_all_work_is_done_and_twice_the_same(name: str, trial: Trial) -> None:
    policy, options = EVERY[name]
    check = nothing_is_given_twice_or_to_those_who_cannot_use_it
    result, again = (disturbed.run(trial, registry.make(policy, options), check) for _ in range(2))
    assert result == again
    assert {each.job.id for each in result.jobs} == {job.id for job in trial.jobs}


def waiting(scheduler: Scheduler) -> list[ScheduledJob]:
    """Who could run on what there is, in order."""
    snapshot = scheduler.snapshot()
    return [state for state in snapshot.queue if snapshot.within_reach(state.job)]


def free_for(scheduler: Scheduler, state: ScheduledJob) -> int:
    snapshot = scheduler.snapshot()
    return sum(snapshot.free[name] for name in snapshot.types_for(state.job))


def no_device_is_idle_that_somebody_could_use(scheduler: Scheduler, event: Event) -> None:
    for state in scheduler.snapshot().running.values():
        assert state.allocation == state.job.demand or not free_for(scheduler, state)
    for state in waiting(scheduler)[:1]:  # those behind it must not pass
        assert free_for(scheduler, state) < state.job.min


@pytest.mark.parametrize("name", ELASTIC)
@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(trial=trials())
def test_no_device_is_idle_while_a_job_could_use_it(name: str, trial: Trial) -> None:
    disturbed.run(trial, registry.make(name), no_device_is_idle_that_somebody_could_use)


@pytest.mark.parametrize("name", ELASTIC)
@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(trial=trials())
def test_after_a_loss_or_a_change_nobody_has_more_than_one_of_higher_priority_who_wants_it(
    name: str, trial: Trial
) -> None:
    policy = registry.make(name)

    def check(scheduler: Scheduler, event: Event) -> None:
        if not isinstance(event, DevicesLost | JobChanged):
            return
        snapshot = scheduler.snapshot()
        if len(snapshot.running) == snapshot.devices:
            return
        weights = {state.id: policy.weight(state, snapshot) for state in snapshot.jobs()}  # type: ignore[attr-defined]
        for high in snapshot.running.values():
            for low in snapshot.running.values():
                if weights[high.id] > weights[low.id] and set(snapshot.types_for(low.job)) <= set(
                    snapshot.types_for(high.job)
                ):
                    more_than_needed = low.allocation - max(low.job.min, 1)
                    assert (
                        high.allocation == high.job.demand
                        or more_than_needed <= 0
                        or high.allocation >= low.allocation - 1
                    )

    disturbed.run(trial, registry.make(name), check)


@pytest.mark.parametrize("name", ["priority", "fifo"])
@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(trial=trials())
def test_the_first_in_line_that_can_be_served_blocks_the_others(name: str, trial: Trial) -> None:
    def check(scheduler: Scheduler, event: Event) -> None:
        snapshot = scheduler.snapshot()
        for state in waiting(scheduler)[:1]:
            usable = sum(snapshot.capacity[kind] for kind in snapshot.types_for(state.job))
            assert free_for(scheduler, state) < min(state.job.demand, usable)

    disturbed.run(trial, registry.make(name), check)


@pytest.mark.parametrize("name", ELASTIC)
@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(trial=trials())
def test_nobody_shrinks_for_a_lower_priority_or_below_what_it_needs(name: str, trial: Trial) -> None:
    policy = registry.make(name)

    def check(snapshot: Snapshot, before: dict[str, int], after: dict[str, int]) -> None:
        assert_nobody_shrinks_for_a_lower_priority(policy, snapshot, before, after)
        assert all(after[name] >= state.job.min for name, state in snapshot.running.items())

    disturbed.run(trial, Watched(policy, check))


@pytest.mark.parametrize("backfill", [False, True])
@pytest.mark.parametrize("name", ["priority", "fifo"])
@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(trial=trials())
def test_static_policies_change_only_those_who_lack_devices_and_then_give_them_all(
    name: str, backfill: bool, trial: Trial
) -> None:
    def check(snapshot: Snapshot, before: dict[str, int], after: dict[str, int]) -> None:
        for job_id, state in snapshot.running.items():
            most = sum(snapshot.capacity[kind] for kind in snapshot.types_for(state.job))
            assert after[job_id] in (before[job_id], min(state.job.demand, most))
            assert after[job_id] >= before[job_id]

    disturbed.run(trial, Watched(registry.make(name, Options(backfill=backfill)), check))


@pytest.mark.parametrize("name", [*GAVEL, "optimus"])
@settings(max_examples=EXAMPLES, deadline=None)
@given(trial=trials())
def test_rounds_are_respected(name: str, trial: Trial) -> None:
    policy = registry.make(name)

    def check(snapshot: Snapshot, before: dict[str, int], after: dict[str, int]) -> None:
        assert policy.round_seconds
        assert snapshot.now % policy.round_seconds == 0

    disturbed.run(trial, Watched(policy, check))
