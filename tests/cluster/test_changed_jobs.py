"""Jobs whose owners change their mind, that were there before the scheduler, or that would rather wait."""

from __future__ import annotations

import dataclasses

import pytest

from tests.cluster.test_scheduler import devices, job, scheduler
from virtualflow.cluster.job import Job
from virtualflow.cluster.messages import (
    DevicesJoined,
    DevicesLost,
    JobArrived,
    JobChanged,
    JobEnded,
    JobsRestored,
    ReallocateJob,
    StartJob,
    SuspendJob,
)
from virtualflow.cluster.policies import registry
from virtualflow.cluster.policies.base import Options
from virtualflow.errors import ConfigError

ALL = ["wfs", "sjf", "srtf", "priority", "fifo"]


def changed(before: Job, **facts: float) -> Job:
    return dataclasses.replace(before, virtual_nodes=0, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ALL)
def test_a_running_job_that_asks_for_less_gives_up_the_rest_at_once(policy: str) -> None:
    brain = scheduler(registry.make(policy))
    first, second = job("first", 4), job("second", 3, 1.0)
    brain.handle(JobArrived(0.0, dataclasses.replace(first, min=4)))
    assert brain.handle(JobArrived(1.0, second)) == []
    assert brain.handle(JobChanged(2.0, changed(first, demand=1))) == [
        ReallocateJob("first", devices(0), restart=brain.policy.restarts),
        StartJob("second", devices(1, 2, 3)),
    ]
    assert brain.snapshot().lacking == 0


@pytest.mark.parametrize("policy", ALL)
def test_a_job_that_asks_for_more_again_gets_what_is_free(policy: str) -> None:
    brain = scheduler(registry.make(policy))
    only = job("only", 4)
    brain.handle(JobArrived(0.0, only))
    assert brain.handle(JobChanged(1.0, changed(only, demand=2))) == [ReallocateJob("only", devices(0, 1))]
    assert brain.handle(JobChanged(2.0, only)) == [ReallocateJob("only", devices(0, 1, 2, 3))]


def test_a_static_job_gets_all_that_it_lacks_before_those_that_wait_or_nothing() -> None:
    brain = scheduler(registry.make("priority"), "V100:5")
    for place, (name, demand) in enumerate({"first": 3, "second": 1, "third": 1, "waits": 2}.items()):
        brain.handle(JobArrived(float(place), job(name, demand, float(place))))
    assert brain.handle(DevicesLost(4.0, devices(0, 1))) == [ReallocateJob("first", devices(2))]
    assert brain.handle(JobEnded(5.0, "second")) == []  # one is free, and "first" lacks two
    assert brain.handle(DevicesJoined(6.0, devices(0))) == [ReallocateJob("first", devices(0, 2, 3))]
    assert brain.handle(DevicesJoined(7.0, devices(1))) == []
    assert brain.handle(JobEnded(8.0, "third")) == [StartJob("waits", devices(1, 4))]


def test_what_a_job_gets_back_counts_when_the_next_in_line_is_promised_a_time() -> None:
    brain = scheduler(registry.make("fifo", Options(backfill=True)), "V100:5")
    big, small = job("big", 5, 1.0), dataclasses.replace(job("small", 1, 2.0), steps=50.0)
    result = JobsRestored(5.0, ((job("lacks", 3), devices(0)),), (big, small))
    # "big" can have all when "lacks" ends, with the three that it has then; "small" is through before that.
    assert brain.handle(result) == [ReallocateJob("lacks", devices(0, 1, 2)), StartJob("small", devices(3))]


def test_a_new_priority_counts_at_once_for_running_and_for_waiting_jobs() -> None:
    brain = scheduler(registry.make("wfs"))
    first, second = job("first", 4), job("second", 4, 1.0)
    brain.handle(JobArrived(0.0, first))
    brain.handle(JobArrived(1.0, second))
    assert brain.handle(JobChanged(2.0, changed(second, priority=3.0))) == [
        ReallocateJob("first", devices(0)),
        ReallocateJob("second", devices(1, 2, 3)),
    ]
    # That more is known of a job's length is no reason to move anybody.
    assert brain.handle(JobChanged(3.0, changed(first, steps=7.0))) == []

    waiting = scheduler(registry.make("priority"), "V100:1")
    jobs = {name: job(name, 1, float(place)) for place, name in enumerate("abc")}
    for place, each in enumerate(jobs.values()):
        waiting.handle(JobArrived(float(place), each))
    assert waiting.handle(JobChanged(5.0, changed(jobs["c"], priority=2.0))) == []
    assert waiting.handle(JobEnded(6.0, "a")) == [StartJob("c", devices(0))]


@pytest.mark.parametrize("policy", ALL)
def test_jobs_that_are_found_keep_their_devices_and_others_share_the_rest(policy: str) -> None:
    brain = scheduler(registry.make(policy))
    result = JobsRestored(5.0, ((job("runs", 2), devices(3, 1)),), (job("waits", 2, 1.0),))
    assert brain.handle(result) == [StartJob("waits", devices(0, 2))]
    assert brain.jobs["runs"].devices == devices(1, 3)
    assert brain.handle(JobEnded(6.0, "runs")) == []
    assert brain.snapshot().idle == 2


def test_jobs_that_are_found_may_not_share_a_device() -> None:
    brain = scheduler(registry.make("wfs"))
    with pytest.raises(ConfigError, match="V100:0 is not free"):
        brain.handle(JobsRestored(0.0, ((job("a"), devices(0)), (job("b"), devices(0)))))
    with pytest.raises(ConfigError, match="there is no job nobody"):
        brain.handle(JobChanged(1.0, job("nobody")))


@pytest.mark.parametrize("policy", ALL)
def test_a_job_waits_rather_than_run_on_fewer_than_its_least(policy: str) -> None:
    brain = scheduler(registry.make(policy))
    brain.handle(JobArrived(0.0, dataclasses.replace(job("first", 3), min=3)))
    assert brain.handle(JobArrived(1.0, dataclasses.replace(job("second", 2, 1.0), min=2))) == []
    actions = brain.handle(JobEnded(2.0, "first"))
    assert [action.job_id for action in actions if isinstance(action, StartJob)] == ["second"]


def test_a_job_that_loses_more_than_it_can_spare_waits() -> None:
    brain = scheduler(registry.make("wfs"), "V100:2")
    brain.handle(JobArrived(0.0, dataclasses.replace(job("only", 2), min=2)))
    actions = brain.handle(DevicesLost(1.0, devices(0)))
    assert actions[-1] == SuspendJob("only")
    assert brain.snapshot().idle == 1
