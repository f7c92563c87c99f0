"""A roster that goes on with a job whose coordinator has died, by what the workers say of themselves."""

from __future__ import annotations

from dataclasses import replace

from virtualflow.core.generation import Cause, Generation
from virtualflow.core.roster import Roster
from virtualflow.core.roster_actions import (
    AbandonJob,
    FinishJob,
    KillWorker,
    PublishGeneration,
    ReleaseWorker,
    RosterAction,
    StartWorker,
)
from virtualflow.core.roster_events import GroupFormed, JobTakenOver
from virtualflow.core.standing import JobStanding, Standing

OWNERS = ("0", "0", "1", "1")
FORMED = Generation(3, Cause.RESIZE, ("0", "1"), OWNERS)
STANDING = Standing(FORMED, has_formed=True, newest=3, node_sizes=(1,) * 4)
JOINER = Standing(Generation(0, Cause.START, ("0", "1")), has_formed=False, newest=3, holds_state=False)


def taken_over(wanted: str = "01", **standings: Standing) -> tuple[Roster, list[RosterAction]]:
    """A roster that was told this, by devices d0, d1 and so on; and what it wants done."""
    roster = Roster(("0", "1"))
    job = JobStanding({name[1:]: standing for name, standing in standings.items()})
    return roster, roster.handle(JobTakenOver(job, tuple(wanted)), 0.0)


def published(actions: list[RosterAction]) -> Generation:
    (generation,) = [action.generation for action in actions if isinstance(action, PublishGeneration)]
    return generation


def test_a_job_in_which_nothing_is_under_way_is_left_alone() -> None:
    roster, actions = taken_over(d0=STANDING, d1=STANDING)
    assert actions == []
    assert roster.is_settled
    assert roster.generation == FORMED
    assert roster.mapping is not None
    assert roster.mapping.devices == OWNERS


def test_a_job_that_has_changed_nothing_yet_has_the_mapping_that_it_began_with() -> None:
    first = replace(STANDING, generation=Generation(0, Cause.START, ("0", "1")), newest=0)
    roster, actions = taken_over(d0=first, d1=first)
    assert actions == []
    assert roster.mapping is not None
    assert roster.mapping.devices == OWNERS


def test_workers_that_died_with_the_coordinator_are_lost_and_replaced() -> None:
    roster, actions = taken_over(d1=STANDING)
    new = published(actions)
    assert (new.number, new.cause, new.devices) == (4, Cause.LOSS, ("1",))
    assert roster.failures == 1
    assert roster.handle(GroupFormed("1", 4), 1.0) == [StartWorker("0")]


def test_a_group_that_was_forming_is_formed_again_by_all_who_hold_the_state() -> None:
    next_one = Generation(4, Cause.RESIZE, ("0", "1", "2"), joining=("2",))
    forming = Standing(next_one, has_formed=False, newest=4, node_sizes=(1,) * 4)
    unaware = STANDING
    with_state = replace(forming, is_invited=True)
    _, actions = taken_over("012", d0=forming, d1=unaware, d2=with_state)
    new = published(actions)
    assert (new.number, new.cause, new.devices) == (5, Cause.LOSS, ("0", "1", "2"))


def test_a_worker_whose_collective_has_failed_gets_another_group() -> None:
    _, actions = taken_over(d0=replace(STANDING, has_formed=False), d1=STANDING)
    assert published(actions).cause == Cause.LOSS


def test_who_was_about_to_receive_the_state_is_ended_and_started_again() -> None:
    roster, actions = taken_over("012", d0=STANDING, d1=STANDING, d2=replace(JOINER, is_ready=True, is_invited=True))
    assert actions[0] == KillWorker("2")
    assert StartWorker("2") in actions
    assert roster.starting == {"2"}


def test_who_joins_goes_on_joining() -> None:
    roster, actions = taken_over("012", d0=STANDING, d1=STANDING, d2=JOINER)
    assert (actions, roster.starting) == ([], {"2"})
    _, actions = taken_over("012", d0=STANDING, d1=STANDING, d2=replace(JOINER, is_ready=True))
    assert published(actions).joining == ("2",)


def test_a_resize_that_was_asked_for_still_comes() -> None:
    _, actions = taken_over("0", d0=STANDING, d1=STANDING)
    assert published(actions).devices == ("0",)


def test_who_has_left_is_released() -> None:
    _, actions = taken_over(d0=STANDING, d1=STANDING, d2=replace(STANDING, generation=replace(FORMED, number=2)))
    assert actions == [ReleaseWorker("2")]


def test_no_more_workers_go_on_than_there_are_virtual_nodes() -> None:
    full = replace(FORMED, devices=("0", "1", "2", "3"))
    member = replace(STANDING, generation=full)
    moved = replace(member, newest=4, has_formed=False)
    devices = {f"d{number}": moved for number in range(5)}
    _, actions = taken_over("01234"[1:], **devices)
    assert ReleaseWorker("0") in actions
    assert published(actions).devices == ("1", "2", "3", "4")


def test_a_stop_that_a_worker_knows_of_comes_once_all_are_in_one_group() -> None:
    told = replace(STANDING, newest=4, must_stop=True)
    roster, actions = taken_over(d0=told, d1=STANDING)
    number = published(actions).number
    roster.handle(GroupFormed("0", number), 0.0)
    assert published(roster.handle(GroupFormed("1", number), 0.0)).cause == Cause.STOP


def test_a_job_that_has_come_to_its_end_ends() -> None:
    finished = replace(STANDING, has_finished=True)
    assert taken_over(d0=finished, d1=finished)[1] == [FinishJob()]


def test_without_a_worker_that_holds_the_state_there_is_nothing_to_go_on_with() -> None:
    assert isinstance(taken_over(d1=JOINER)[1][0], AbandonJob)


def test_a_job_that_had_formed_no_group_yet_forms_its_first_one_anew() -> None:
    forming = Standing(Generation(0, Cause.START, ("0", "1")), has_formed=False, newest=0)
    roster, actions = taken_over(d0=forming, d1=forming)
    assert published(actions).devices == ("0", "1")
    assert roster.mapping is None
