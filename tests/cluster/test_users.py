"""Users first, then their jobs: shares, caps and groups, under every way in which a policy shares devices."""

from __future__ import annotations

import tomllib

import pytest

from virtualflow.cluster.job import Job
from virtualflow.cluster.messages import DevicesLost, JobArrived, JobChanged, JobEnded, JobsRestored, Woken
from virtualflow.cluster.policies import registry
from virtualflow.cluster.policies.base import Options
from virtualflow.cluster.scheduler import Scheduler
from virtualflow.cluster.throughput.model import Profiled
from virtualflow.cluster.users import Party, Users, users_of
from virtualflow.core.devices import parse_pools
from virtualflow.errors import ConfigError


def scheduler(users: Users | None, policy: str = "wfs", devices: str = "V100:8") -> Scheduler:
    made = registry.make(policy, Options(round_seconds=100.0))
    return Scheduler(parse_pools(devices), made, Profiled(), users=users)


def job(name: str, demand: int = 8, arrival: float = 0.0, **more: object) -> Job:
    """Its owner is its first letter."""
    return Job(name, arrival, demand, 1e6, owner=name[0], **more)  # type: ignore[arg-type]


def arrive(brain: Scheduler, *jobs: Job) -> None:
    for each in jobs:
        brain.handle(JobArrived(each.arrival_seconds, each))


def held(brain: Scheduler) -> dict[str, int]:
    return {name: state.allocation for name, state in brain.jobs.items()}


def test_two_users_have_equal_shares_however_many_jobs_they_have() -> None:
    brain = scheduler(Users())
    arrive(brain, *(job(f"a{number}", arrival=number) for number in range(3)))
    assert held(brain) == {"a0": 3, "a1": 3, "a2": 2}  # one user: the policy's own business
    arrive(brain, job("b", arrival=5.0))
    assert held(brain) == {"a0": 2, "a1": 1, "a2": 1, "b": 4}
    brain.handle(JobEnded(6.0, "b"))
    assert sum(held(brain).values()) == 8


def test_without_users_every_job_counts_alike() -> None:
    brain = scheduler(None)
    arrive(brain, job("a0"), job("a1"), job("a2"), job("b"))
    assert held(brain) == {"a0": 2, "a1": 2, "a2": 2, "b": 2}


def test_a_newcomer_gets_his_share_even_if_every_device_has_a_job_of_its_own() -> None:
    brain = scheduler(Users())
    arrive(brain, *(job(f"a{number}", 1, number) for number in range(12)), job("b", 4, 20.0))
    had = held(brain)
    assert had["b"] == 4
    assert [name for name, count in had.items() if count and name != "b"] == ["a0", "a1", "a2", "a3"]
    assert brain.why_aside("a9") == "the fair share of a's jobs is 4 devices now, and others of them come first"


@pytest.mark.parametrize("policy", ["wfs", "las", "fifo", "tiresias"])
def test_a_job_that_came_under_a_larger_cap_gives_its_devices_up(policy: str) -> None:
    brain = scheduler(Users({"a": Party(devices=1)}), policy)
    running = (job("a0", 4, min=2), ("V100:0", "V100:1"))
    brain.handle(JobsRestored(0.0, (running,), (job("a1", 4), job("a2", 4, min=3)), {}))
    brain.handle(Woken(100.0))
    assert held(brain) == {"a0": 0, "a1": 1, "a2": 0}
    assert brain.why_aside("a0") == "a's jobs may have 1 device together, and this one needs at least 2"


def test_weights_decide_between_users_and_priorities_between_the_jobs_of_one() -> None:
    brain = scheduler(Users({"a": Party(weight=3.0)}))
    arrive(brain, job("a0", priority=2.0), job("a1", priority=1.0), job("b", priority=100.0))
    assert held(brain) == {"a0": 4, "a1": 2, "b": 2}


def test_what_a_user_does_not_need_goes_to_the_others() -> None:
    brain = scheduler(Users())
    arrive(brain, job("a", 8), job("b", 1), job("c", 8))
    assert held(brain) == {"a": 4, "b": 1, "c": 3}


def test_groups_share_first_then_their_users() -> None:
    users = Users({"a": Party(group="lab"), "b": Party(group="lab"), "c": Party()}, {"lab": Party(weight=1.0)})
    brain = scheduler(users)
    arrive(brain, job("a"), job("b"), job("c"))
    assert held(brain) == {"a": 2, "b": 2, "c": 4}


@pytest.mark.parametrize("policy", ["wfs", "srtf", "fifo", "priority", "las", "tiresias"])
def test_a_cap_holds_under_every_policy_even_if_devices_stay_free(policy: str) -> None:
    brain = scheduler(Users({"a": Party(devices=3)}), policy)
    arrive(brain, job("a0", 4), job("a1", 4), job("b", 2))
    brain.handle(Woken(0.0))
    for round_end in (100.0, 200.0, 300.0):
        brain.handle(Woken(round_end))
        had = held(brain)
        assert had["a0"] + had["a1"] <= 3
        assert had["b"] == 2
    assert had["a0"] > 0


def test_the_cap_of_a_group_counts_for_all_of_it() -> None:
    users = Users({"a": Party(group="lab"), "b": Party(group="lab", devices=1)}, {"lab": Party(devices=4)})
    brain = scheduler(users)
    arrive(brain, job("a"), job("b"))
    assert held(brain) == {"a": 3, "b": 1}
    assert users.cap_of("a") == 4
    assert users.cap_of("b") == 1
    assert users.cap_of("c") is None


def test_where_jobs_keep_their_devices_shares_decide_who_starts_next() -> None:
    brain = scheduler(Users(), "fifo")
    arrive(brain, job("a0", 4, 0.0), job("a1", 4, 1.0), job("a2", 4, 2.0), job("b0", 4, 3.0))
    assert held(brain) == {"a0": 4, "a1": 4, "a2": 0, "b0": 0}  # nobody is stopped
    brain.handle(JobEnded(10.0, "a0"))
    assert held(brain) == {"a1": 4, "a2": 0, "b0": 4}  # a2 is older


def test_where_jobs_take_turns_users_have_equal_time() -> None:
    brain = scheduler(Users(), "las", "V100:1")
    arrive(brain, job("a0", 1), job("a1", 1), job("a2", 1), job("b", 1))
    had = dict.fromkeys(brain.jobs, 0)
    for number in range(1, 61):
        brain.handle(Woken(100.0 * number))
        for name, count in held(brain).items():
            had[name] += count
    assert had["b"] == pytest.approx(30, abs=3)
    assert had["a0"] + had["a1"] + had["a2"] == pytest.approx(30, abs=3)


def test_a_job_whose_minimum_is_more_than_its_owners_share_runs_nevertheless() -> None:
    brain = scheduler(Users(), devices="V100:4")
    arrive(brain, job("a", 4), job("b", 4, min=4))
    brain.handle(JobEnded(1.0, "a"))
    assert held(brain) == {"b": 4}


def test_other_demands_ends_and_lost_devices_are_shared_out_anew() -> None:
    brain = scheduler(Users({"a": Party(devices=6)}))
    arrive(brain, job("a"), job("b"))
    assert held(brain) == {"a": 4, "b": 4}
    brain.handle(JobChanged(1.0, job("b", 1)))
    assert held(brain) == {"a": 6, "b": 1}
    brain.handle(DevicesLost(2.0, tuple(f"V100:{number}" for number in range(4))))
    assert held(brain) == {"a": 3, "b": 1}


def test_a_takeover_brings_jobs_to_their_shares() -> None:
    brain = scheduler(Users(), devices="V100:2")
    running = ((job("a0", 1), ("V100:0",)), (job("a1", 1), ("V100:1",)))
    brain.handle(JobsRestored(0.0, running, (job("b", 1),)))
    assert held(brain) == {"a0": 1, "a1": 0, "b": 1}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[users.ann]\nweight = 2", "has users; expected"),
        ("[user.ann]\nwieght = 2", "unknown wieght. It has devices, group, weight"),
        ("[user.ann]\nweight = 'two'", "weight is a number, not 'two'"),
        ("[user.ann]\nweight = 0", "a weight is a number from 0.001 to 1000"),
        ("[user.ann]\ndevices = 0", "a cap is a number of devices, at least 1"),
        ("[user.ann]\ndevices = 1.5", "devices is a whole number"),
        ("[user.ann]\ngroup = 'lab'", r"is in group lab, which is not there: add \[group.lab\]"),
        ("user = 3", "user is a table of tables"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        users_of(tomllib.loads(text), "users.toml")


def test_a_file_names_users_and_groups() -> None:
    text = "[user.ann]\nweight = 2\ndevices = 4\ngroup = 'lab'\n[group.lab]\ndevices = 6\n"
    assert users_of(tomllib.loads(text), "f") == Users({"ann": Party(2.0, 4, "lab")}, {"lab": Party(1.0, 6)})
