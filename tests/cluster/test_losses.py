"""Devices that go, jobs that change: nobody raises, nobody is forgotten, and what is left is shared anew."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cluster.test_scheduler import devices, job, scheduler
from virtualflow.cluster.job import Job
from virtualflow.cluster.messages import (
    Action,
    DevicesJoined,
    DevicesLost,
    Event,
    JobArrived,
    JobChanged,
    JobEnded,
    JobsRestored,
    ReallocateJob,
    StartJob,
    SuspendJob,
    WakeAt,
    Woken,
)
from virtualflow.cluster.policies import registry
from virtualflow.cluster.policies.base import Options
from virtualflow.cluster.scheduler import Scheduler
from virtualflow.cluster.throughput.table import Table
from virtualflow.core.devices import parse_pools

ALL = list(registry.BUILT_IN)
ANY_NUMBER = [policy for policy in ALL if policy != "sia"]  # which gives powers of two, and whole machines
GAVEL = ["las", "las-agnostic", "las-mixed", "las-mixed-columns", "water-filling", "ftf", "makespan"]
WEIGHTED = GAVEL[:5]  # the other two have no use for priorities
ELASTIC, STATIC = ["wfs", "sjf", "srtf"], ["priority", "fifo"]
TABLE = Table(  # "narrow" runs on V100s only
    {
        "v100": {("wide", 1): 2.0, ("wide", 4): 8.0, ("narrow", 1): 2.0, ("narrow", 4): 8.0},
        "k80": {("wide", 1): 1.0, ("wide", 4): 4.0, ("narrow", 1): 0.0, ("narrow", 4): 0.0},
    },
    {},
)


class Driven:
    """A scheduler whose wishes to be woken are met; rounds are run through."""

    def __init__(self, policy: str, pools: str = "V100:4", options: Options = Options()) -> None:  # noqa: B008, frozen
        self.brain = Scheduler(parse_pools(pools), registry.make(policy, options), TABLE)
        self.now, self.wakes = 0.0, [0.0]

    def tell(self, *events: Event) -> list[Action]:
        """The actions of some events, and of the rounds of an hour after them."""
        result: list[Action] = []
        for event in events:
            self.now = max(self.now, event.seconds)
            result += self._handle(replace(event, seconds=self.now))
        until = self.now + 3600
        while (due := min((seconds for seconds in self.wakes if seconds <= until), default=None)) is not None:
            self.wakes.remove(due)
            self.now = max(self.now, due)
            result += self._handle(Woken(self.now))
        return result

    def _handle(self, event: Event) -> list[Action]:
        actions = self.brain.handle(event)
        self.wakes += [action.seconds for action in actions if isinstance(action, WakeAt)]
        return actions

    def counts(self) -> dict[str, int]:
        return {name: state.allocation for name, state in self.brain.jobs.items()}

    def device_seconds(self) -> dict[str, float]:
        return {name: state.attained(self.now) for name, state in self.brain.jobs.items()}


def made(name: str, demand: int = 1, workload: str = "wide", **facts: float) -> Job:
    return Job(name, 0.0, demand, 1e6, workload, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ALL)
def test_all_devices_may_be_lost_and_come_back(policy: str) -> None:
    driven = Driven(policy)
    driven.tell(JobArrived(0.0, made("a", 2)), JobArrived(0.0, made("b", 2)))
    driven.tell(DevicesLost(0.0, devices(0, 1, 2, 3)))
    assert driven.counts() == {"a": 0, "b": 0}
    driven.tell(JobArrived(0.0, made("c", 2)))
    driven.tell(DevicesJoined(0.0, devices(0, 1, 2, 3)))
    assert sum(driven.counts().values()) == 4


@pytest.mark.parametrize("policy", GAVEL)
def test_who_waits_for_lost_devices_is_not_looked_at_again_and_again_at_one_moment(policy: str) -> None:
    brain = Driven(policy, options=Options(compat="gavel")).brain
    brain.handle(DevicesLost(0.0, devices(0, 1, 2, 3)))
    wakes, now = brain.handle(JobArrived(10.0, made("waits", 2))), 10.0
    while wakes:
        assert wakes[0].seconds > now  # type: ignore[union-attr]
        now = wakes[0].seconds  # type: ignore[union-attr]
        wakes = brain.handle(Woken(now))
    assert brain.handle(DevicesJoined(now + 1.0, devices(0, 1, 2, 3)))[0] == StartJob("waits", devices(0, 1))


@pytest.mark.parametrize("policy", ALL)
def test_a_jobs_only_type_may_be_lost_and_the_others_go_on(policy: str) -> None:
    driven = Driven(policy, "V100:2,K80:2")
    driven.tell(JobArrived(0.0, made("narrow", 2, "narrow", priority=9)), JobArrived(0.0, made("wide", 2)))
    driven.tell(DevicesLost(0.0, devices(0, 1)))
    assert driven.counts() == {"narrow": 0, "wide": 2}
    driven.tell(JobArrived(0.0, made("late", 2)), JobEnded(0.0, "wide"))
    assert driven.counts() == {"narrow": 0, "late": 2}
    driven.tell(DevicesJoined(0.0, devices(0, 1)), JobEnded(0.0, "late"))
    assert driven.counts() == {"narrow": 2}


@pytest.mark.parametrize("compat", [None, "gavel"])
@pytest.mark.parametrize("policy", GAVEL)
def test_a_gavel_job_whose_demand_was_cut_is_not_granted_the_old_one_again(policy: str, compat: str | None) -> None:
    driven = Driven(policy, options=Options(compat=compat))
    job = made("only", 4)
    driven.tell(JobArrived(0.0, job))
    assert driven.counts() == {"only": 4}
    driven.tell(JobChanged(0.0, replace(job, demand=1, virtual_nodes=0)))
    assert driven.counts() == {"only": 1}
    driven.tell(JobChanged(0.0, replace(job, demand=3, virtual_nodes=0)))
    assert driven.counts() == {"only": 3}


@pytest.mark.parametrize("policy", WEIGHTED)
def test_a_gavel_job_of_new_priority_has_its_share_from_then_on(policy: str) -> None:
    driven = Driven(policy)
    first, second = made("first", 4), made("second", 4)
    driven.tell(JobArrived(0.0, first), JobArrived(0.0, second))
    before = driven.device_seconds()
    assert before["first"] == pytest.approx(before["second"], rel=0.25)
    driven.tell(JobChanged(0.0, replace(second, priority=9.0)))
    for _ in range(4):  # hours
        driven.tell()
    gained = {name: seconds - before[name] for name, seconds in driven.device_seconds().items()}
    assert gained["second"] > 3 * gained["first"] > 0


@pytest.mark.parametrize("policy", ["wfs"])
def test_after_a_partial_loss_the_higher_priority_has_the_larger_share(policy: str) -> None:
    brain = scheduler(registry.make(policy), "V100:8")
    brain.handle(JobArrived(0.0, job("high", 4, priority=10)))
    brain.handle(JobArrived(0.0, job("low", 4, priority=1)))
    brain.handle(DevicesLost(1.0, devices(0, 1, 2)))
    assert {name: state.allocation for name, state in brain.jobs.items()} == {"high": 4, "low": 1}
    brain.handle(DevicesJoined(2.0, devices(0, 1, 2)))
    assert {name: state.allocation for name, state in brain.jobs.items()} == {"high": 4, "low": 4}


@pytest.mark.parametrize("rounding", ["any", "pow2"])
def test_a_raised_demand_is_shared_anew(rounding: str) -> None:
    brain = scheduler(registry.make("wfs", Options(round=rounding)), "V100:8")
    small = job("small", 2)
    brain.handle(JobArrived(0.0, small))
    brain.handle(JobArrived(1.0, job("large", 6, 1.0)))
    brain.handle(JobChanged(2.0, replace(small, demand=8, virtual_nodes=0)))
    assert {name: state.allocation for name, state in brain.jobs.items()} == {"small": 4, "large": 4}


@pytest.mark.parametrize("policy", ALL)
def test_a_minimum_that_cannot_be_met_holds_nobody_up(policy: str) -> None:
    driven = Driven(policy)
    driven.tell(DevicesLost(0.0, devices(3)))
    driven.tell(JobArrived(0.0, made("greedy", 4, min=4, priority=9)))
    driven.tell(JobArrived(0.0, made("modest", 1)))
    assert driven.counts() == {"greedy": 0, "modest": 1}
    driven.tell(JobEnded(0.0, "modest"), DevicesJoined(0.0, devices(3)))
    assert driven.counts() == {"greedy": 4}


@pytest.mark.parametrize("policy", ALL)
def test_of_two_types_one_alone_may_not_meet_a_minimum(policy: str) -> None:
    """Those that mix types put it on both; the others let it wait, and nobody waits with it."""
    driven = Driven(policy, "V100:2,K80:2")
    driven.tell(JobArrived(0.0, made("greedy", 3, min=3, priority=9)), JobArrived(0.0, made("modest", 1)))
    result = driven.counts()
    assert result["greedy"] in (0, 3)
    assert result["modest"] == 1


@pytest.mark.parametrize("policy", [*ELASTIC, *STATIC])
def test_a_job_that_waits_for_its_minimum_is_not_passed_for_ever(policy: str) -> None:
    brain = scheduler(registry.make(policy))
    brain.handle(JobArrived(0.0, replace(job("runs", 3), min=3)))
    assert brain.handle(JobArrived(1.0, replace(job("waits", 4, 1.0, priority=1.0), min=4))) == []
    assert brain.handle(JobArrived(2.0, job("small", 1, 2.0))) == []
    started = [action.job_id for action in brain.handle(JobEnded(3.0, "runs")) if isinstance(action, StartJob)]
    assert started == ["waits"]


@pytest.mark.parametrize("policy", ANY_NUMBER)
def test_a_raised_minimum_counts_for_running_jobs(policy: str) -> None:
    driven = Driven(policy)
    job = made("job", 4)
    driven.tell(DevicesLost(0.0, devices(3)), JobArrived(0.0, job))
    assert driven.counts() == {"job": 3}
    driven.tell(JobChanged(0.0, replace(job, min=4)))
    assert driven.counts() == {"job": 0}
    driven.tell(DevicesJoined(0.0, devices(3)))
    assert driven.counts() == {"job": 4}


@pytest.mark.parametrize("policy", [*ELASTIC, *STATIC])
def test_a_job_that_is_found_on_less_than_its_minimum_waits(policy: str) -> None:
    brain = scheduler(registry.make(policy))
    brain.handle(DevicesLost(0.0, devices(3)))
    result = JobsRestored(1.0, ((replace(job("greedy", 4), min=4), devices(0, 1)),), (job("modest", 1, 1.0),))
    actions = brain.handle(result)
    assert SuspendJob("greedy") in actions
    assert [action.job_id for action in actions if isinstance(action, StartJob)] == ["modest"]


@pytest.mark.parametrize("policy", ["wfs", "sjf", "srtf"])
def test_a_job_that_fits_only_one_type_is_not_kept_from_it_by_one_of_lower_priority(policy: str) -> None:
    driven = Driven(policy, "V100:2,K80:4")
    driven.tell(JobArrived(0.0, made("low", 2)))
    assert driven.brain.jobs["low"].counts == {"V100": 2}
    high = replace(made("high", 2, "narrow", priority=10), steps=1e5)  # and shorter
    actions = driven.tell(JobArrived(1.0, high))
    assert actions == [ReallocateJob("low", ("K80:0", "K80:1")), StartJob("high", devices(0, 1))]


def test_a_job_of_higher_priority_keeps_the_type_that_it_is_on() -> None:
    driven = Driven("wfs", "V100:2,K80:4")
    driven.tell(JobArrived(0.0, made("high", 2, priority=10)))
    assert driven.tell(JobArrived(1.0, made("low", 2, "narrow"))) == []
    assert driven.tell(JobEnded(2.0, "high")) == [StartJob("low", devices(0, 1))]


def test_jobs_that_fit_only_one_type_share_it_by_priority() -> None:
    driven = Driven("wfs", "V100:4,K80:4")
    driven.tell(JobArrived(0.0, made("low", 4, "narrow")))
    driven.tell(JobArrived(1.0, made("high", 4, "narrow", priority=3)))
    driven.tell(JobArrived(2.0, made("wide", 8)))
    assert driven.counts() == {"low": 1, "high": 3, "wide": 4}


def test_who_waits_for_one_type_does_not_hold_up_those_that_can_use_another() -> None:
    driven = Driven("wfs", "V100:1,K80:4")
    driven.tell(JobArrived(0.0, made("runs", 1, "narrow")), JobArrived(1.0, made("waits", 1, "narrow")))
    assert driven.tell(JobArrived(2.0, made("wide", 4))) == [StartJob("wide", ("K80:0", "K80:1", "K80:2", "K80:3"))]
    assert driven.counts() == {"runs": 1, "waits": 0, "wide": 4}


@pytest.mark.parametrize(
    ("changes", "counts"),
    [({"priority": 3.0}, {"first": 4, "second": 0}), ({"demand": 1, "virtual_nodes": 0}, {"first": 1, "second": 3})],
)
def test_a_job_that_was_changed_while_it_was_away_has_no_old_claims(
    changes: dict[str, float], counts: dict[str, int]
) -> None:
    brain = Driven("wfs")
    first, second = made("first", 4), made("second", 4)
    brain.tell(JobArrived(0.0, first), JobArrived(0.0, second), JobEnded(0.0, "second"), JobEnded(0.0, "first"))
    brain.tell(JobArrived(0.0, replace(first, **changes)))  # type: ignore[arg-type]
    brain.tell(JobArrived(0.0, second))
    assert brain.counts() == counts


@pytest.mark.parametrize("policy", GAVEL)
def test_a_gavel_job_that_comes_back_within_a_round_is_granted_what_it_asks_for_now(policy: str) -> None:
    driven = Driven(policy)
    job = made("only", 4)
    driven.tell(JobArrived(0.0, job))
    driven.tell(JobEnded(0.0, "only"), JobArrived(0.0, replace(job, demand=1, virtual_nodes=0)))
    assert driven.counts() == {"only": 1}


@pytest.mark.parametrize("policy", WEIGHTED)
def test_a_device_that_comes_and_goes_keeps_no_gavel_job_from_its_turn(policy: str) -> None:
    brain = Driven(policy).brain
    for name in ("first", "second"):
        brain.handle(JobArrived(0.0, made(name, 3)))  # one of them at a time
    for number in range(1, 21):
        brain.handle(Woken(360.0 * number))
        brain.handle((DevicesLost if number % 2 else DevicesJoined)(360.0 * number + 100, devices(3)))
    first, second = (brain.jobs[name].attained(360.0 * 20) for name in ("first", "second"))
    assert first == pytest.approx(second, rel=0.25)


@pytest.mark.parametrize("policy", ANY_NUMBER)
@settings(max_examples=8, deadline=None)
@given(
    visits=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 4), st.integers(1, 4), st.sampled_from((1.0, 5.0))), max_size=8
    )
)
def test_jobs_that_leave_and_return_as_others_get_what_they_ask_for_then(
    policy: str, visits: list[tuple[str, int, int, float]]
) -> None:
    driven = Driven(policy)
    for name, demand, least, priority in visits:
        job = made(name, demand, min=min(least, demand), priority=priority)
        leaves = [JobEnded(0.0, name)] if name in driven.brain.jobs else []
        driven.tell(*leaves, JobArrived(0.0, job))  # within a round
        for state in driven.brain.jobs.values():
            assert state.allocation == 0 or state.job.min <= state.allocation <= state.job.demand
        devices_used = [device for state in driven.brain.jobs.values() if not state.host for device in state.devices]
        assert len(devices_used) == len(set(devices_used)) <= 4
    for name in list(driven.brain.jobs)[1:]:
        driven.tell(JobEnded(0.0, name))
    assert all(state.allocation == state.job.demand for state in driven.brain.jobs.values())
