"""Who has which devices: grants in, devices and actions out, without a scheduler or a policy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from virtualflow.cluster.assignment import Assignment
from virtualflow.cluster.job import Job, ScheduledJob
from virtualflow.cluster.messages import ReallocateJob, StartJob, SuspendJob
from virtualflow.cluster.placement import Placement
from virtualflow.cluster.policies.base import NOTHING, Grant
from virtualflow.cluster.throughput.model import Profiled
from virtualflow.core.devices import parse_pools
from virtualflow.errors import PolicyError


def assignment(devices: str = "V100:4", *, restarts: bool = False) -> Assignment:
    return Assignment(Placement(parse_pools(devices)), Profiled(), restarts=restarts)


def state(name: str, demand: int = 2, min: int = 1) -> ScheduledJob:
    return ScheduledJob(Job(name, 0.0, demand, 100.0, min=min))


def v100(*numbers: int) -> tuple[str, ...]:
    return tuple(f"V100:{number}" for number in numbers)


def test_a_grant_to_a_waiting_job_starts_it() -> None:
    some, a = assignment(), state("a")
    assert some.apply(0.0, [(a, Grant.of(2))]) == [StartJob("a", v100(0, 1))]
    assert (a.devices, a.allocation, a.counts) == (v100(0, 1), 2, {"V100": 2})


def test_the_same_grant_again_changes_nothing() -> None:
    some, a = assignment(), state("a")
    some.apply(0.0, [(a, Grant.of(2))])
    assert some.apply(1.0, [(a, Grant.of(2))]) == []


def test_a_job_that_grows_keeps_its_devices() -> None:
    some, a = assignment(), state("a", 3)
    some.apply(0.0, [(a, Grant.of(2))])
    assert some.apply(1.0, [(a, Grant.of(3))]) == [ReallocateJob("a", v100(0, 1, 2))]


def test_what_one_job_gives_up_another_can_have_in_the_same_decision() -> None:
    some, a, b = assignment(), state("a", 4), state("b")
    some.apply(0.0, [(a, Grant.of(4))])
    actions = some.apply(1.0, [(b, Grant.of(2)), (a, Grant.of(2))])
    assert actions == [StartJob("b", v100(2, 3)), ReallocateJob("a", v100(0, 1))]


def test_nothing_suspends_a_running_job_and_frees_its_devices() -> None:
    some, a = assignment(), state("a")
    some.apply(0.0, [(a, Grant.of(2))])
    assert some.apply(1.0, [(a, NOTHING)]) == [SuspendJob("a")]
    assert some.placement.free == {"V100": 4}
    assert "a" not in some.running


def test_a_suspended_job_that_gets_devices_again_is_resumed() -> None:
    some, a = assignment(), state("a")
    some.apply(0.0, [(a, Grant.of(2))])
    some.apply(1.0, [(a, NOTHING)])
    assert some.apply(2.0, [(a, Grant.of(1))]) == [StartJob("a", v100(0), resumed=True)]


def test_where_jobs_are_not_elastic_a_change_is_a_restart() -> None:
    some, a = assignment(restarts=True), state("a")
    some.apply(0.0, [(a, Grant.of(1))])
    assert some.apply(1.0, [(a, Grant.of(2))]) == [ReallocateJob("a", v100(0, 1), restart=True)]


def test_types_named_in_a_grant_are_the_types_that_are_given() -> None:
    some, a = assignment("V100:2,K80:2"), state("a", 3)
    assert some.apply(0.0, [(a, Grant({"K80": 1, "V100": 1}))]) == [StartJob("a", ("V100:0", "K80:0"))]
    assert some.apply(1.0, [(a, Grant({"K80": 2}))]) == [ReallocateJob("a", ("K80:0", "K80:1"))]


def test_more_devices_than_are_free_is_an_error_of_the_policy() -> None:
    some = assignment()
    with pytest.raises(PolicyError, match=r"granted job a 5 more devices, but 4 are free"):
        some.apply(0.0, [(state("a", 8), Grant.of(5))])


def test_lacking_counts_what_running_jobs_want_beyond_what_they_have() -> None:
    some, a, b = assignment(), state("a", 4), state("b", 3)
    some.apply(0.0, [(a, Grant.of(2)), (b, Grant.of(2))])
    assert some.lacking == 2 + 1
    some.end(1.0, b)
    assert some.lacking == 2
    some.apply(2.0, [(a, Grant.of(4))])
    assert some.lacking == 0


def test_a_job_that_asks_for_fewer_gives_up_the_rest_at_once() -> None:
    some, a = assignment(), state("a", 4)
    some.apply(0.0, [(a, Grant.of(4))])
    assert some.ask_for(1.0, a, replace(a.job, demand=1, virtual_nodes=1)) == [ReallocateJob("a", v100(0))]


def test_a_job_that_needs_more_than_it_has_gives_up_all() -> None:
    some, a = assignment(), state("a", 4)
    some.apply(0.0, [(a, Grant.of(2))])
    assert some.ask_for(1.0, a, replace(a.job, min=3)) == [SuspendJob("a")]


def test_a_job_goes_on_without_a_lost_device() -> None:
    some, a = assignment(), state("a")
    some.apply(0.0, [(a, Grant.of(2))])
    assert some.lose(1.0, v100(1, 3)) == [ReallocateJob("a", v100(0))]
    assert some.placement.free == {"V100": 1}


def test_a_job_left_with_less_than_its_minimum_waits_and_its_other_devices_are_free() -> None:
    some, a = assignment(), state("a", 2, min=2)
    some.apply(0.0, [(a, Grant.of(2))])
    assert some.lose(1.0, v100(1)) == [SuspendJob("a")]
    assert some.placement.free == {"V100": 3}


def test_an_adopted_job_keeps_its_devices_without_an_action() -> None:
    some, a = assignment(), state("a")
    assert some.adopt(5.0, a, v100(3, 2)) == []
    assert a.devices == v100(2, 3)
    assert some.placement.free == {"V100": 2}


def test_a_co_located_job_takes_no_free_devices() -> None:
    some, host, beside = assignment(), state("host"), state("beside", 1)
    some.apply(0.0, [(host, Grant.of(2))])
    actions = some.apply(1.0, [(beside, Grant({"V100": 1}, beside="host"))])
    assert actions == [StartJob("beside", v100(0), host="host")]
    assert some.placement.free == {"V100": 2}


def test_two_co_located_jobs_are_never_on_the_same_device() -> None:
    some, host, one, two = assignment(), state("host"), state("one", 1), state("two", 1)
    some.apply(0.0, [(host, Grant.of(2))])
    some.apply(1.0, [(one, Grant({"V100": 1}, beside="host")), (two, Grant({"V100": 1}, beside="host"))])
    assert (one.devices, two.devices) == (v100(0), v100(1))
    with pytest.raises(PolicyError, match="of which 0 can be shared"):
        some.apply(2.0, [(state("three", 1), Grant({"V100": 1}, beside="host"))])


def test_when_a_host_ends_a_co_located_job_has_the_device_to_itself() -> None:
    some, host, beside = assignment(), state("host"), state("beside", 1)
    some.apply(0.0, [(host, Grant.of(2))])
    some.apply(1.0, [(beside, Grant({"V100": 1}, beside="host"))])
    assert some.end(2.0, host) == [ReallocateJob("beside", v100(0))]
    assert beside.host is None
    assert some.placement.free == {"V100": 3}


def test_a_co_located_job_whose_seat_goes_away_with_its_hosts_device_is_suspended() -> None:
    some, host, one, two = assignment(), state("host"), state("one", 1), state("two", 1)
    some.apply(0.0, [(host, Grant.of(2))])
    some.apply(1.0, [(one, Grant({"V100": 1}, beside="host")), (two, Grant({"V100": 1}, beside="host"))])
    assert some.apply(2.0, [(host, Grant.of(1))]) == [SuspendJob("two"), ReallocateJob("host", v100(0))]
    assert (one.devices, two.devices) == (v100(0), ())


def test_lacking_follows_what_a_running_job_asks_for() -> None:
    some, a = assignment(), state("a", 2)
    some.apply(0.0, [(a, Grant.of(2))])
    some.ask_for(1.0, a, replace(a.job, demand=5, virtual_nodes=8))
    assert some.lacking == 3
    some.ask_for(2.0, a, replace(a.job, demand=3, virtual_nodes=8))
    assert some.lacking == 1


def test_a_job_that_can_use_any_type_is_given_no_more_than_it_was_granted() -> None:
    some, a = assignment("V100:2,K80:4"), state("a", 3)
    assert some.apply(0.0, [(a, Grant.of(3))]) == [StartJob("a", ("V100:0", "V100:1", "K80:0"))]
    assert some.placement.free == {"V100": 0, "K80": 3}
