"""Jobs that state the memory they need get devices that hold them, or wait with the reason: under every policy."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cluster.test_losses import ALL, Driven, devices, made
from tests.cluster.test_scheduler import Scripted
from virtualflow.cluster.job import Job
from virtualflow.cluster.messages import (
    DevicesJoined,
    DevicesLost,
    JobArrived,
    JobChanged,
    JobEnded,
    JobsRestored,
    StartJob,
    SuspendJob,
)
from virtualflow.cluster.policies.base import Decision, Grant
from virtualflow.cluster.scheduler import Scheduler
from virtualflow.cluster.throughput.model import Profiled
from virtualflow.core.devices import parse_pools
from virtualflow.core.memory_needs import MemoryNeeds, least_peak

FOUR = MemoryNeeds((4, 4, 4, 4), copies=1)  # 4 on each of four devices, 8 on each of two
WHOLE = MemoryNeeds((10,))


def driven(policy: str, pools: str = "V100:4", **memory: int) -> Driven:
    found = Driven(policy, pools)
    found.brain = Scheduler(parse_pools(pools), found.brain.policy, found.brain.throughput, memory=memory)
    return found


def staged(name: str, demand: int = 1, memory: MemoryNeeds = FOUR, **facts: float) -> Job:
    return replace(made(name, demand, **facts), memory=memory, virtual_nodes=8)


@pytest.mark.parametrize("policy", ALL)
def test_a_job_that_fits_no_single_device_gets_as_many_as_hold_it(policy: str) -> None:
    brain = driven(policy, V100=8)
    brain.tell(JobArrived(0.0, staged("large")))
    assert brain.counts() == {"large": 2}
    brain.tell(JobEnded(0.0, "large"), JobArrived(0.0, staged("small", memory=WHOLE)))
    assert brain.counts() == {"small": 0}
    assert brain.brain.why_aside("small") == "it needs devices of at least 10 bytes, and the largest here has 8 bytes"


@pytest.mark.parametrize("policy", ALL)
def test_one_that_nothing_holds_waits_and_holds_up_nobody(policy: str) -> None:
    brain = driven(policy, V100=3)
    brain.tell(JobArrived(0.0, staged("huge", 2, priority=9)), JobArrived(0.0, made("modest", 2)))
    assert brain.counts() == {"huge": 0, "modest": 2}
    assert (
        brain.brain.why_aside("huge")
        == "even spread over 4 devices it needs one of at least 4 bytes, and the largest here has 3 bytes"
    )
    brain.tell(JobChanged(0.0, staged("huge", 2, MemoryNeeds((1, 1, 1, 1), copies=1))))
    assert brain.counts()["huge"] > 0
    assert brain.brain.why_aside("huge") is None


@pytest.mark.parametrize("policy", ALL)
def test_too_few_devices_are_counted_and_new_ones_welcome(policy: str) -> None:
    brain = driven(policy, "V100:2", V100=4)
    brain.tell(JobArrived(0.0, staged("large", 2)))
    assert brain.counts() == {"large": 0}
    assert brain.brain.why_aside("large") == "it needs 4 devices of at least 4 bytes; 2 are there"
    brain.tell(DevicesJoined(0.0, devices(2, 3)))
    assert brain.counts() == {"large": 4}


@pytest.mark.parametrize("policy", ALL)
def test_types_that_are_too_small_are_not_offered(policy: str) -> None:
    brain = driven(policy, "V100:2,K80:2", V100=16, K80=8)
    brain.tell(JobArrived(0.0, staged("whole", 4, WHOLE)), JobArrived(0.0, made("wide", 2)))
    assert set(brain.brain.jobs["whole"].counts) <= {"V100"}
    brain.tell(JobEnded(0.0, "wide"))
    assert set(brain.brain.jobs["whole"].counts) == {"V100"}


@pytest.mark.parametrize("policy", ALL)
def test_a_model_in_stages_stays_on_one_type(policy: str) -> None:
    brain = driven(policy, "V100:2,K80:3", V100=8, K80=8)
    brain.tell(JobArrived(0.0, staged("large", 5)))
    assert brain.brain.jobs["large"].counts == {"K80": 3}  # the type that has the most of what it asks for


@pytest.mark.parametrize("policy", ALL)
def test_with_fewer_devices_left_than_hold_it_a_job_waits(policy: str) -> None:
    brain = driven(policy, V100=4)
    brain.tell(JobArrived(0.0, staged("large", 4)), DevicesLost(0.0, devices(3)))
    assert brain.counts() == {"large": 0}
    brain.tell(DevicesJoined(0.0, devices(3)))
    assert brain.counts() == {"large": 4}


@pytest.mark.parametrize("policy", ALL)
def test_a_job_that_turns_out_larger_goes_on_where_it_fits(policy: str) -> None:
    brain = driven(policy, V100=8)
    brain.tell(JobArrived(0.0, staged("grows", memory=MemoryNeeds((2, 2, 2, 2), copies=1))))
    assert brain.counts() == {"grows": 1}
    brain.tell(JobChanged(0.0, staged("grows")))
    assert brain.counts() == {"grows": 2}
    brain.tell(JobChanged(0.0, staged("grows", memory=WHOLE)))
    assert brain.counts() == {"grows": 0}
    brain.tell(JobEnded(0.0, "grows"))
    assert brain.counts() == {}


def test_a_job_whose_memory_is_measured_stays_on_devices_that_hold_it() -> None:
    brain = driven("wfs", "V100:2,K80:4", V100=8, K80=8)
    unknown = replace(staged("job", 2), memory=None)
    brain.tell(JobArrived(0.0, unknown))
    assert brain.tell(JobChanged(0.0, replace(unknown, memory=FOUR))) == []
    assert brain.brain.jobs["job"].counts == {"V100": 2}
    assert brain.brain.jobs["job"].job.min == 2


def test_a_job_that_is_found_on_devices_that_do_not_hold_it_gives_them_up() -> None:
    brain = driven("wfs", "V100:4,K80:2", V100=8, K80=2).brain
    found = (
        (staged("wrong"), ("K80:0", "K80:1")),
        (staged("few"), devices(0)),
        (staged("huge", memory=WHOLE), devices(1)),
    )
    actions = brain.handle(JobsRestored(0.0, found))
    assert {action.job_id for action in actions if isinstance(action, SuspendJob)} == {"wrong", "few", "huge"}
    assert {action.job_id for action in actions if isinstance(action, StartJob)} == {"wrong", "few"}


def test_nothing_is_refused_where_the_memory_of_devices_is_not_known() -> None:
    brain = driven("wfs")
    brain.tell(JobArrived(0.0, staged("large")))
    assert brain.counts() == {"large": 1}


@pytest.mark.parametrize(
    "grant", [Grant({"V100": 1}), Grant({"K80": 2}), Grant({"V100": 1, "K80": 1}), Grant({"V100": 1}, beside="other")]
)
def test_the_scheduler_itself_refuses_what_a_policy_grants_below_that(grant: Grant) -> None:
    policy = Scripted(Decision({"other": Grant.of(1)}), Decision({"large": grant}))
    brain = Scheduler(parse_pools("V100:3,K80:2"), policy, Profiled(), memory={"V100": 8, "K80": 2})
    brain.handle(JobArrived(0.0, Job("other", 0.0, 1, 10.0)))
    large = Job("large", 0.0, 2, 10.0, memory=FOUR)
    assert brain.handle(JobArrived(1.0, large)) == []
    assert brain.jobs["large"].devices == ()


sizes = st.lists(st.integers(0, 6), min_size=1, max_size=4).map(tuple)
visits = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.integers(1, 5),
        st.none() | st.builds(MemoryNeeds, sizes, st.integers(0, 6), st.integers(1, 2)),
        st.sampled_from((1.0, 5.0)),
        st.none() | st.integers(0, 4),
    ),
    max_size=7,
)


@pytest.mark.parametrize("policy", ALL)
@settings(max_examples=12, deadline=None)
@given(visits=visits, large=st.integers(1, 14), small=st.integers(1, 14))
def test_no_allocation_is_below_what_holds_the_job(
    policy: str,
    visits: list[tuple[str, int, MemoryNeeds | None, float, int | None]],
    large: int,
    small: int,
) -> None:
    memory, lost = {"V100": large, "K80": small}, set[int]()
    brain = driven(policy, "V100:3,K80:2", **memory)
    for name, demand, needs, priority, device in visits:
        job = replace(made(name, demand, priority=priority), memory=needs, virtual_nodes=max(demand, 4))
        brain.tell((JobChanged if name in brain.brain.jobs else JobArrived)(0.0, job))
        if device is not None:
            named = ("V100:0", "V100:1", "V100:2", "K80:0", "K80:1")[device : device + 1]
            brain.tell((DevicesJoined if device in lost else DevicesLost)(0.0, named))
            lost ^= {device}
        for state in brain.brain.jobs.values():
            assert_holds(state.job, state.counts, memory)
    if lost:
        brain.tell(DevicesJoined(0.0, tuple(("V100:0", "V100:1", "V100:2", "K80:0", "K80:1")[d] for d in lost)))
    for name in list(brain.brain.jobs)[1:]:
        brain.tell(JobEnded(0.0, name))
    for name, state in brain.brain.jobs.items():  # whoever is left alone runs, unless nothing holds it
        assert bool(state.devices) == (brain.brain.why_aside(name) is None)


def assert_holds(job: Job, counts: dict[str, int] | object, memory: dict[str, int]) -> None:
    assert isinstance(counts, dict)
    if job.memory is None or not counts:
        return
    assert not job.memory.is_cut or len(counts) == 1
    for name, count in counts.items():
        assert least_peak(job.memory, job.virtual_nodes, count) <= memory[name]
