"""Events in, lists of actions out: no cluster, no clock."""

from __future__ import annotations

import pytest

from virtualflow.cluster.job import Job
from virtualflow.cluster.messages import (
    DevicesJoined,
    DevicesLost,
    Event,
    JobArrived,
    JobEnded,
    ProgressReported,
    ReallocateJob,
    StartJob,
    SuspendJob,
    WakeAt,
    Woken,
)
from virtualflow.cluster.policies import registry
from virtualflow.cluster.policies.base import NOTHING, Decision, Grant, Options, Policy
from virtualflow.cluster.scheduler import Scheduler
from virtualflow.cluster.snapshot import Snapshot
from virtualflow.cluster.throughput.model import Profiled
from virtualflow.core.devices import parse_pools
from virtualflow.errors import ConfigError, PolicyError


class Scripted(Policy):
    """Says what it was told to say."""

    name = "scripted"

    def __init__(self, *decisions: Decision) -> None:
        super().__init__()
        self.decisions = list(decisions)
        self.seen: list[Snapshot] = []

    def allocate(self, snapshot: Snapshot) -> Decision:
        self.seen.append(snapshot)
        return self.decisions.pop(0) if self.decisions else Decision()


def scheduler(policy: Policy, devices: str = "V100:4") -> Scheduler:
    return Scheduler(parse_pools(devices), policy, Profiled())


def job(name: str, demand: int = 1, arrival: float = 0.0, priority: float = 1.0) -> Job:
    return Job(name, arrival, demand, 100.0, priority=priority)


def devices(*numbers: int) -> tuple[str, ...]:
    return tuple(f"V100:{number}" for number in numbers)


def test_the_papers_example_a_wants_two_and_b_wants_eight() -> None:
    brain = scheduler(registry.make("wfs"), "V100:8")
    assert brain.handle(JobArrived(0.0, job("A", 2))) == [StartJob("A", devices(0, 1))]
    assert brain.handle(JobArrived(1.0, job("B", 8, 1.0))) == [StartJob("B", devices(2, 3, 4, 5, 6, 7))]
    assert brain.handle(JobEnded(9.0, "A")) == [ReallocateJob("B", devices(*range(8)))]


def test_a_higher_priority_shrinks_lower_ones_and_a_lower_one_waits() -> None:
    brain = scheduler(registry.make("wfs"))
    brain.handle(JobArrived(0.0, job("0", 4, priority=1)))
    assert brain.handle(JobArrived(1.0, job("1", 2, 1.0, priority=5))) == [
        ReallocateJob("0", devices(0, 1)),
        StartJob("1", devices(2, 3)),
    ]
    actions = brain.handle(JobArrived(2.0, job("2", 4, 2.0, priority=10)))
    assert {
        action.job_id: len(action.devices) for action in actions if isinstance(action, ReallocateJob | StartJob)
    } == {
        "0": 1,
        "1": 1,
        "2": 2,
    }
    assert brain.handle(JobArrived(3.0, job("3", 1, 3.0, priority=1))) == []


def test_a_job_that_takes_only_what_is_idle_does_not_shrink_anyone() -> None:
    brain = scheduler(registry.make("wfs"), "V100:8")
    brain.handle(JobArrived(0.0, job("high", 7, priority=10)))
    # Its fair share would be 2 or 3, but the job of higher priority has the rest.
    assert brain.handle(JobArrived(1.0, job("low", 8, 1.0, priority=5))) == [StartJob("low", devices(7))]


def test_static_priority_blocks_behind_the_first_in_line() -> None:
    brain = scheduler(registry.make("priority"))
    brain.handle(JobArrived(0.0, job("running", 3)))
    assert brain.handle(JobArrived(1.0, job("large", 4, 1.0, priority=5))) == []
    assert brain.handle(JobArrived(2.0, job("small", 1, 2.0))) == []
    assert brain.handle(JobEnded(3.0, "running")) == [StartJob("large", devices(0, 1, 2, 3))]


def test_backfill_lets_a_job_pass_that_does_not_delay_the_first_in_line() -> None:
    brain = scheduler(registry.make("fifo", Options(backfill=True)))
    brain.handle(JobArrived(0.0, job("running", 3)))
    brain.handle(JobArrived(1.0, job("large", 4, 1.0)))
    assert brain.handle(JobArrived(2.0, Job("long", 2.0, 1, 500.0))) == []
    brain.handle(ProgressReported(3.0, {"running": 3.0}))
    assert brain.handle(JobArrived(3.0, Job("short", 3.0, 1, 90.0))) == [StartJob("short", devices(3))]


def test_lost_devices_shrink_jobs_and_who_has_none_left_waits() -> None:
    brain = scheduler(registry.make("wfs"), "V100:2")
    brain.handle(JobArrived(0.0, job("A", 1, priority=5)))
    brain.handle(JobArrived(0.0, job("B", 1)))
    assert brain.handle(DevicesLost(1.0, devices(0))) == [SuspendJob("A")]
    assert brain.handle(JobEnded(2.0, "B")) == [StartJob("A", devices(1), resumed=True)]
    assert brain.handle(DevicesJoined(3.0, devices(0))) == []
    assert brain.handle(JobArrived(4.0, job("C", 1, 4.0))) == [StartJob("C", devices(0))]


def test_a_new_machine_is_used_at_once_and_a_loss_told_twice_counts_once() -> None:
    brain = scheduler(registry.make("wfs"), "V100:2")
    brain.handle(JobArrived(0.0, job("A", 4)))
    assert brain.handle(DevicesJoined(1.0, devices(2, 3))) == [ReallocateJob("A", devices(0, 1, 2, 3))]
    assert brain.snapshot().machine_sizes == {"V100": (2, 2)}
    assert brain.handle(DevicesLost(2.0, devices(3))) == [ReallocateJob("A", devices(0, 1, 2))]
    assert brain.handle(DevicesLost(3.0, devices(3))) == []
    assert brain.snapshot().devices == 3


def in_rounds() -> Scheduler:
    policy = Scripted(Decision({"A": Grant.of(2)}))
    policy.round_seconds = 360.0
    return scheduler(policy)


def test_rounds_begin_at_multiples() -> None:
    brain = in_rounds()
    assert brain.handle(JobArrived(5.0, job("A", 2, 5.0))) == [WakeAt(360.0)]
    assert brain.handle(Woken(360.0)) == [StartJob("A", devices(0, 1)), WakeAt(720.0)]


def test_within_a_round_nothing_is_decided() -> None:
    brain = in_rounds()
    brain.handle(JobArrived(5.0, job("A", 2, 5.0)))
    assert brain.handle(JobArrived(7.0, job("B", 2, 7.0))) == []


def test_rounds_end_with_the_jobs() -> None:
    brain = in_rounds()
    brain.handle(JobArrived(5.0, job("A", 2, 5.0)))
    brain.handle(Woken(360.0))
    assert brain.handle(JobEnded(400.0, "A")) == []
    assert brain.handle(Woken(720.0)) == []


def with_co_located() -> Scheduler:
    """Four devices, of which A has two and B shares the first."""
    brain = scheduler(Scripted(Decision({"A": Grant({"V100": 2})}), Decision({"B": Grant({"V100": 1}, beside="A")})))
    brain.handle(JobArrived(0.0, job("A", 2)))
    brain.handle(JobArrived(1.0, job("B", 1, 1.0)))
    return brain


def test_a_co_located_job_shares_devices_of_its_host() -> None:
    brain = with_co_located()
    assert (brain.jobs["B"].devices, brain.jobs["B"].host, brain.jobs["A"].co_located) == (devices(0), "A", ("B",))
    assert brain.snapshot().idle == 2


def test_a_co_located_job_inherits_the_devices_it_is_on() -> None:
    brain = with_co_located()
    assert brain.handle(JobEnded(2.0, "A")) == [ReallocateJob("B", devices(0))]
    assert brain.snapshot().idle == 3


def test_inherited_devices_are_free_when_the_co_located_job_ends() -> None:
    brain = with_co_located()
    brain.handle(JobEnded(2.0, "A"))
    brain.handle(JobEnded(3.0, "B"))
    assert brain.snapshot().idle == 4


def test_a_co_located_job_loses_its_seat_with_the_hosts_device() -> None:
    policy = Scripted(
        Decision({"A": Grant({"V100": 2})}),
        Decision({"B": Grant({"V100": 2}, beside="A")}),
        Decision({"A": Grant({"V100": 1})}),
    )
    brain = scheduler(policy)
    brain.handle(JobArrived(0.0, job("A", 2)))
    brain.handle(JobArrived(1.0, job("B", 2, 1.0)))
    assert brain.handle(Woken(2.0)) == [SuspendJob("B"), ReallocateJob("A", devices(0))]
    assert brain.snapshot().idle == 3


def test_co_located_jobs_change_places_in_one_decision() -> None:
    policy = Scripted(
        Decision({"A": Grant({"V100": 1})}),
        Decision({"B": Grant({"V100": 1})}),
        Decision({"C": Grant({"V100": 1}, beside="A")}),
        Decision({"D": Grant({"V100": 1}, beside="B")}),
        Decision({"C": Grant({"V100": 1}, beside="B"), "D": Grant({"V100": 1}, beside="A")}),
    )
    brain = scheduler(policy)
    for name in "ABCD":
        brain.handle(JobArrived(0.0, job(name)))
    assert brain.handle(Woken(2.0)) == [
        ReallocateJob("C", devices(1), host="B"),
        ReallocateJob("D", devices(0), host="A"),
    ]
    assert (brain.jobs["A"].co_located, brain.jobs["B"].co_located) == (("D",), ("C",))


def test_time_slices_are_suspensions_and_wishes_to_be_woken() -> None:
    policy = Scripted(
        Decision({"A": Grant.of(4)}),
        Decision(wake_seconds=60.0),
        Decision({"A": NOTHING, "B": Grant.of(4)}, wake_seconds=120.0),
    )
    brain = scheduler(policy)
    brain.handle(JobArrived(0.0, job("A", 4)))
    assert brain.handle(JobArrived(0.0, job("B", 4))) == [WakeAt(60.0)]
    assert brain.handle(Woken(60.0)) == [SuspendJob("A"), StartJob("B", devices(0, 1, 2, 3)), WakeAt(120.0)]
    assert brain.jobs["A"].attained(60.0) == 240.0
    assert brain.jobs["A"].seconds_on("V100", 90.0) == 60.0


def test_mixed_allocations_have_a_count_for_each_type() -> None:
    brain = scheduler(Scripted(Decision({"A": Grant({"P100": 1, "V100": 2})})), "V100:2,P100:2")
    assert brain.handle(JobArrived(0.0, job("A", 3))) == [StartJob("A", ("V100:0", "V100:1", "P100:0"))]
    assert brain.jobs["A"].counts == {"V100": 2, "P100": 1}


@pytest.mark.parametrize(
    ("grant", "message"),
    [
        (Grant.of(9), "scripted: the policy granted job A 9 more"),
        (Grant({"V100": 5}), "but 4 are free"),
        (Grant({"K80": 1}), "type K80, but 0 are free"),
        (Grant({"V100": 1}, beside="nobody"), "no devices of its own"),
    ],
)
def test_a_policy_that_grants_what_cannot_be_is_named(grant: Grant, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        scheduler(Scripted(Decision({"A": grant}))).handle(JobArrived(0.0, job("A")))


def test_a_policy_that_grants_to_nobody_is_named() -> None:
    with pytest.raises(PolicyError, match="scripted granted devices to job ghost"):
        scheduler(Scripted(Decision({"ghost": Grant.of(1)}))).handle(JobArrived(0.0, job("A")))


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (JobArrived(6.0, job("A")), "there is a job A already"),
        (JobEnded(1.0, "A"), "time runs backwards"),
        (JobEnded(6.0, "B"), "there is no job B, or it has ended"),
        (DevicesLost(6.0, ("K80:0",)), "not part of the cluster"),
        (JobArrived(7.0, Job("B", 7.0, 1, 1.0, workload="resnet50", node_size=100_000)), "can run on no device"),
    ],
    ids=["second job of a name", "earlier time", "unknown job", "unknown device", "too large a node"],
)
def test_an_event_that_can_not_be_is_refused(event: Event, message: str) -> None:
    brain = scheduler(registry.make("fifo"))
    brain.handle(JobArrived(5.0, job("A")))
    with pytest.raises(ConfigError, match=message):
        brain.handle(event)


def test_an_unknown_policy_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match="wfs, sjf, srtf"):
        registry.make("magic")


def test_a_job_moves_to_a_faster_type_that_nobody_else_wants() -> None:
    """P100s have a quarter of a V100's speed here: B takes A's place, and C, of lower priority, B's."""
    brain = Scheduler(parse_pools("V100:2,P100:4"), registry.make("wfs"), Profiled())
    made = [Job(name, 0.0, 2, 100.0, "resnet50", 128, 2, priority) for name, priority in (("A", 1), ("C", 2), ("B", 3))]
    for each in made:
        brain.handle(JobArrived(0.0, each))
    assert brain.handle(JobEnded(9.0, "A")) == [ReallocateJob("B", devices(0, 1))]
    assert brain.handle(JobEnded(99.0, "B")) == [ReallocateJob("C", devices(0, 1))]


def test_a_job_stays_where_another_type_is_no_faster() -> None:
    brain = scheduler(registry.make("wfs"), "V100:2,P100:4")
    brain.handle(JobArrived(0.0, job("A", 2)))
    brain.handle(JobArrived(0.0, job("B", 2)))
    assert brain.handle(JobEnded(9.0, "A")) == []
