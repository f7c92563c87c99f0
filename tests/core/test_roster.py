"""The membership of a job as a value: an event in, actions out. No process, no clock."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualflow.core.balance import Speeds
from virtualflow.core.generation import Cause, Generation
from virtualflow.core.mapping import Mapping, rebalance, spread
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
from virtualflow.core.roster_events import (
    GroupFormed,
    JoinerReady,
    JoiningClosed,
    LeaveNoticed,
    LossReported,
    RemapWanted,
    ResizeWanted,
    ScriptEnded,
    ShrinkWanted,
    SizesKnown,
    StateReceived,
    StopWanted,
    TimePassed,
    WorkerGone,
    WorkerOffered,
)
from virtualflow.errors import MappingError


def running(devices: str = "012", virtual_nodes: int = 8, replace_lost: bool = True) -> Roster:
    """A job whose workers have started, each device named by a letter."""
    roster = Roster(tuple(devices), replace_lost=replace_lost)
    roster.handle(SizesKnown((1,) * virtual_nodes), 0.0)
    return roster


def published(actions: list[RosterAction]) -> Generation:
    """The one generation among *actions*."""
    (generation,) = [action.generation for action in actions if isinstance(action, PublishGeneration)]
    return generation


def all_ready(roster: Roster, devices: str, now: float = 0.0) -> list[RosterAction]:
    return [action for device in devices for action in roster.handle(JoinerReady(device), now)]


def all_formed(roster: Roster, now: float = 0.0) -> list[RosterAction]:
    """Everybody goes through the pending change."""
    pending = roster.pending
    assert pending is not None
    for device in pending.joining:
        roster.handle(StateReceived(device), 0.0)
    return [action for device in pending.devices for action in roster.handle(GroupFormed(device, pending.number), now)]


def resized(roster: Roster, devices: str, now: float = 0.0) -> list[RosterAction]:
    """Take *roster* to *devices*, all the way."""
    started = [
        action.device for action in roster.handle(ResizeWanted(tuple(devices)), now) if isinstance(action, StartWorker)
    ]
    all_ready(roster, "".join(started), now)
    return all_formed(roster, now)


def nodes(roster: Roster) -> dict[str, int]:
    assert roster.mapping is not None
    return dict(Counter(roster.mapping.devices))


def test_growing_trains_on_until_all_who_join_are_ready() -> None:
    roster = running("01")
    assert roster.handle(ResizeWanted(("0", "1", "2", "3")), 0.0) == [StartWorker("2"), StartWorker("3")]
    assert roster.handle(JoinerReady("2"), 1.0) == []
    assert roster.handle(TimePassed(), 1.5) == []
    new = published(roster.handle(JoinerReady("3"), 2.0))
    assert new == replace(
        new, number=1, cause=Cause.RESIZE, devices=("0", "1", "2", "3"), joining=("2", "3"), leaving=(), sender="0"
    )
    assert Counter(new.owners) == dict.fromkeys("0123", 2)
    assert not roster.is_settled
    assert roster.handle(GroupFormed("0", new.number), 3.0) == []
    assert all_formed(roster, 3.0) == []
    assert roster.is_settled
    assert (roster.generation, roster.resizes, nodes(roster)) == (new, 1, dict.fromkeys("0123", 2))


def test_one_who_is_late_to_join_is_waited_for_with_patience_and_then_comes_later() -> None:
    roster = running("01")
    roster.handle(ResizeWanted(("0", "1", "2", "3")), 0.0)
    roster.handle(JoinerReady("2"), 1.0)
    assert roster.handle(TimePassed(), 30.0) == []
    generation = published(roster.handle(TimePassed(), 31.0))
    assert generation.devices == ("0", "1", "2")
    assert all_formed(roster, 32.0) == []  # still on the way to four
    assert not roster.is_settled
    assert published(roster.handle(JoinerReady("3"), 90.0)).devices == ("0", "1", "2", "3")


def test_shrinking_starts_nobody_and_releases_those_who_leave_once_the_others_have_formed() -> None:
    roster = running("0123")
    new = published(roster.handle(ResizeWanted(("0", "2")), 0.0))
    assert (new.devices, new.joining, new.leaving, new.sender) == (("0", "2"), (), ("1", "3"), None)
    assert roster.handle(GroupFormed("0", new.number), 1.0) == []
    assert roster.handle(GroupFormed("2", new.number), 1.0) == [ReleaseWorker("1"), ReleaseWorker("3")]
    assert nodes(roster) == {"0": 4, "2": 4}


def test_a_job_that_shrinks_by_itself_lets_nobody_in_any_more() -> None:
    roster = running("012")
    assert published(roster.handle(ShrinkWanted(2), 0.0)).devices == ("0", "1")
    assert ReleaseWorker("2") in all_formed(roster)
    with pytest.raises(MappingError, match="none can join a later one"):
        roster.handle(WorkerOffered("guest"), 0.0)


def test_on_wholly_other_devices_one_who_leaves_sends_the_state_and_stays_until_all_have_formed() -> None:
    roster = running("01", virtual_nodes=2)
    assert roster.handle(ResizeWanted(("a", "b")), 0.0) == [StartWorker("a"), StartWorker("b")]
    new = published(all_ready(roster, "ab"))
    assert (new.devices, new.joining, new.leaving) == (("a", "b"), ("a", "b"), ("0", "1"))
    assert new.sender in new.leaving
    roster.handle(StateReceived("a"), 0.0)
    assert roster.handle(GroupFormed("a", new.number), 1.0) == []
    roster.handle(StateReceived("b"), 0.0)
    assert roster.handle(GroupFormed("b", new.number), 1.0) == [ReleaseWorker("0"), ReleaseWorker("1")]


def test_the_last_resize_wins_over_one_whose_workers_are_starting() -> None:
    roster = running("01")
    roster.handle(ResizeWanted(("0", "1", "2", "3")), 0.0)
    roster.handle(JoinerReady("2"), 0.0)
    assert roster.handle(ResizeWanted(("0", "1", "3")), 1.0) == [KillWorker("2")]
    assert published(roster.handle(JoinerReady("3"), 2.0)).devices == ("0", "1", "3")


def test_the_last_resize_wins_over_one_that_is_being_carried_out() -> None:
    roster = running("01")
    roster.handle(ResizeWanted(("0", "1", "2")), 0.0)
    first = published(roster.handle(JoinerReady("2"), 0.0))
    assert roster.handle(ResizeWanted(("0", "1", "2", "3", "4")), 0.0) == []
    assert roster.handle(ResizeWanted(("1",)), 0.0) == []
    last = published(all_formed(roster))
    assert (last.number, last.devices, last.leaving) == (first.number + 1, ("1",), ("0", "2"))


def test_a_resize_back_to_what_is_there_dismisses_those_who_were_starting() -> None:
    roster = running("01")
    roster.handle(ResizeWanted(("0", "1", "2")), 0.0)
    assert roster.handle(ResizeWanted(("0", "1")), 0.0) == [KillWorker("2")]
    assert roster.is_settled
    assert roster.handle(WorkerGone("2"), 0.1) == []
    assert roster.failures == 0  # killed on purpose, so another one may start at once
    assert roster.handle(ResizeWanted(("0", "1", "2")), 0.1) == [StartWorker("2")]


def test_late_news_of_a_worker_that_was_dismissed_changes_nothing() -> None:
    roster = running("01")
    roster.handle(ResizeWanted(("0", "1", "2")), 0.0)
    roster.handle(ResizeWanted(("0", "1")), 0.0)
    assert roster.handle(JoinerReady("2"), 0.0) == [KillWorker("2")]
    assert roster.handle(WorkerGone("2"), 0.1) == []
    assert roster.is_settled
    assert roster.handle(TimePassed(), 1.0) == []


def test_after_a_death_the_others_go_on_at_once_and_a_replacement_joins_later() -> None:
    roster = running("012", virtual_nodes=6)
    new = published(roster.handle(WorkerGone("0"), 10.0))
    assert (new.cause, new.devices, new.joining) == ("loss", ("1", "2"), ())
    assert Counter(new.owners) == {"1": 3, "2": 3}
    assert all_formed(roster, 10.0) == []  # not at once: something may be wrong with the device
    assert not roster.is_settled
    assert roster.handle(TimePassed(), 20.0) == [StartWorker("0")]
    assert published(roster.handle(JoinerReady("0"), 21.0)).joining == ("0",)
    all_formed(roster, 21.0)
    assert roster.is_settled
    assert (roster.failures, nodes(roster)) == (1, {"0": 2, "1": 2, "2": 2})


def test_a_second_death_before_the_others_have_formed() -> None:
    roster = running("0123")
    first = published(roster.handle(WorkerGone("1"), 0.0))
    assert roster.handle(GroupFormed("0", first.number), 0.0) == []
    second = published(roster.handle(WorkerGone("0"), 0.1))
    assert (second.cause, second.devices) == ("loss", ("2", "3"))
    assert roster.handle(GroupFormed("2", first.number), 0.2) == []  # of a generation that is over
    all_formed(roster, 0.3)
    assert roster.generation == second


def test_a_death_while_the_state_moves_drops_joiners_without_it_and_keeps_those_that_hold_it() -> None:
    roster = running("012")
    roster.handle(ResizeWanted(tuple("012345")), 0.0)
    all_ready(roster, "345")
    roster.handle(StateReceived("4"), 0.0)
    actions = roster.handle(WorkerGone("1"), 1.0)
    assert actions[:-1] == [KillWorker("3"), KillWorker("5")]
    assert published(actions).devices == ("0", "2", "4")
    for device in "35":
        assert roster.handle(WorkerGone(device), 1.1) == []
    assert roster.failures == 1  # those that were killed on purpose have not failed
    assert all_formed(roster, 60.0) == [StartWorker("1"), StartWorker("3"), StartWorker("5")]


def test_a_death_while_many_join_does_not_end_the_job() -> None:
    roster = running("01", virtual_nodes=16)
    roster.handle(ResizeWanted(tuple("0123456789ab")), 0.0)
    all_ready(roster, "23456789ab")
    assert len([action for action in roster.handle(WorkerGone("1"), 1.0) if isinstance(action, KillWorker)]) == 10
    for device in "23456789ab":
        assert roster.handle(WorkerGone(device), 1.1) == []


def test_a_joiner_that_dies_with_the_state_is_lost_like_any_other() -> None:
    roster = running("01")
    roster.handle(ResizeWanted(("0", "1", "2", "3")), 0.0)
    all_ready(roster, "23")
    roster.handle(StateReceived("2"), 0.0)
    roster.handle(StateReceived("3"), 0.0)
    assert published(roster.handle(WorkerGone("2"), 1.0)).devices == ("0", "1", "3")


def test_those_who_leave_are_let_go_when_they_are_too_many_together_with_those_who_join() -> None:
    roster = running("012", virtual_nodes=3)
    roster.handle(ResizeWanted(tuple("abc")), 0.0)
    all_ready(roster, "abc")
    for device in "abc":
        roster.handle(StateReceived(device), 0.0)
    actions = roster.handle(WorkerGone("b"), 1.0)  # 0, 1, 2, a and c hold the state, and there is work for three
    assert [action for action in actions if isinstance(action, ReleaseWorker)] == [
        ReleaseWorker("0"),
        ReleaseWorker("1"),
    ]
    assert published(actions).devices == ("2", "a", "c")
    all_formed(roster, 1.0)
    assert nodes(roster) == dict.fromkeys("2ac", 1)


def test_the_sender_may_die_in_the_middle_of_a_move_to_other_devices() -> None:
    roster = running("01", virtual_nodes=4)
    roster.handle(ResizeWanted(("a", "b")), 0.0)
    all_ready(roster, "ab")
    actions = roster.handle(WorkerGone("0"), 1.0)
    assert actions[:-1] == [KillWorker("a"), KillWorker("b")]
    assert published(actions).devices == ("1",)
    assert all_formed(roster, 1.0) == [StartWorker("a"), StartWorker("b")]
    new = published(all_ready(roster, "ab"))
    assert (new.sender, new.leaving) == ("1", ("1",))


def test_nobody_joins_once_the_first_loop_is_over() -> None:
    roster = running("01")
    roster.handle(ResizeWanted(tuple("012")), 0.0)
    assert roster.handle(JoiningClosed(), 0.0) == [KillWorker("2")]
    assert roster.is_settled
    with pytest.raises(MappingError, match="first Trainer"):
        roster.handle(ResizeWanted(tuple("0123")), 1.0)
    with pytest.raises(MappingError, match="first Trainer"):
        roster.handle(WorkerOffered("host/1"), 0.0)
    assert published(roster.handle(WorkerGone("1"), 2.0)).devices == (
        "0",
    )  # a death is survived, and nobody is started instead
    all_formed(roster, 2.0)
    assert roster.handle(TimePassed(), 100.0) == []
    assert roster.is_settled


def test_those_who_were_about_to_join_when_the_first_loop_ended_are_killed() -> None:
    roster = running("01")
    roster.handle(ResizeWanted(tuple("012")), 0.0)
    all_ready(roster, "2")
    assert roster.handle(JoiningClosed(), 0.0) == [KillWorker("2")]
    new = published(roster.handle(WorkerGone("2"), 1.0))
    assert (new.cause, new.devices) == ("loss", ("0", "1"))


def test_a_worker_that_was_told_to_go_and_does_is_no_failure() -> None:
    roster = running("012")
    published(roster.handle(LeaveNoticed("2"), 0.0))
    assert published(roster.handle(WorkerGone("2"), 1.0)).devices == ("0", "1")
    assert (roster.failures, roster.target) == (0, ("0", "1"))


def test_a_mapping_given_by_hand_outlives_a_death_before_it_could_be_used() -> None:
    roster = Roster(tuple("012"), (0, 0, 0, 1, 2))
    published(roster.handle(WorkerGone("1"), 0.0))
    roster.handle(SizesKnown((1,) * 5), 0.0)
    assert roster.mapping is not None
    assert set(roster.mapping.devices) == {"0", "2"}


def test_all_workers_lost_is_the_end() -> None:
    roster = running("01")
    roster.handle(WorkerGone("0"), 0.0)
    (end,) = roster.handle(WorkerGone("1"), 0.0)
    assert end == AbandonJob("all workers were lost")


def test_a_group_that_broke_with_nobody_missing_is_formed_again() -> None:
    roster = running("012")
    for device in "012":
        roster.handle(LossReported(device, 0), 0.0)
    new = published(roster.handle(TimePassed(), 0.1))  # nobody else is to be waited for
    assert (new.cause, new.devices) == ("loss", ("0", "1", "2"))
    assert not all_formed(roster)
    assert roster.failures == 0


def test_one_who_has_not_noticed_a_broken_group_is_killed_if_another_one_can_not_be_formed_either() -> None:
    roster = running("0123")
    for device in "013":
        assert roster.handle(LossReported(device, 0), 100.0) == []
    assert roster.handle(TimePassed(), 102.5) == []
    again = published(roster.handle(TimePassed(), 103.5))  # after a tenth of the patience
    assert again.devices == ("0", "1", "2", "3")
    assert roster.handle(TimePassed(), 110.0) == []
    for device in "013":
        roster.handle(LossReported(device, again.number), 133.5)
    assert roster.handle(TimePassed(), 137.0) == [KillWorker("2")]
    assert published(roster.handle(WorkerGone("2"), 137.1)).devices == ("0", "1", "3")


def test_one_who_notices_late_that_a_group_is_broken_is_left_alone() -> None:
    roster = running("0123")
    new = published(roster.handle(WorkerGone("2"), 100.0))
    for device in "13":  # they have had no patience left to wait for it in the new group
        roster.handle(LossReported(device, new.number), 110.0)
    roster.handle(LossReported("0", 0), 110.0)
    again = published(roster.handle(TimePassed(), 110.1))
    assert again.devices == ("0", "1", "3")
    for device in "13":
        roster.handle(LossReported(device, again.number), 123.5)
    assert roster.handle(TimePassed(), 123.6) == []
    roster.handle(LossReported("0", 0), 124.0)  # it still was in the first one
    assert published(roster.handle(TimePassed(), 127.0)).devices == ("0", "1", "3")


def test_one_who_is_busy_while_a_known_loss_is_repaired_is_left_alone() -> None:
    roster = running("0123")
    new = published(roster.handle(WorkerGone("0"), 0.0))
    for device in "12":  # their collective has failed; 3 computes and will notice at its next one
        roster.handle(LossReported(device, 0), 0.01)
    for second in range(1, 20):
        assert roster.handle(TimePassed(), float(second)) == []
    # Only when the others' patience with two new groups has ended is it late.
    for device in "12":
        roster.handle(LossReported(device, new.number), 30.0)
    again = published(roster.handle(TimePassed(), 33.5))
    for device in "12":
        roster.handle(LossReported(device, again.number), 63.5)
    assert roster.handle(TimePassed(), 67.0) == [KillWorker("3")]


def test_a_joiner_that_is_late_for_the_state_is_killed_and_the_others_go_on() -> None:
    roster = running("01")
    roster.handle(ResizeWanted(("0", "1", "2")), 0.0)
    roster.handle(JoinerReady("2"), 0.0)
    for device in "01":
        roster.handle(LossReported(device, 0), 30.0)  # they have not changed yet
    actions = roster.handle(TimePassed(), 33.5)
    assert KillWorker("2") in actions
    assert published(actions).devices == ("0", "1")


def test_one_whose_script_has_ended_is_not_taken_for_late() -> None:
    roster = running("012")
    roster.handle(ScriptEnded("2"), 0.0)
    for device in "01":
        roster.handle(LossReported(device, 0), 1.0)
    assert published(roster.handle(TimePassed(), 5.0)).devices == ("0", "1", "2")


def test_a_worker_that_was_told_to_go_leaves_and_is_not_replaced() -> None:
    roster = running("012")
    new = published(roster.handle(LeaveNoticed("0"), 0.0))
    assert (new.cause, new.devices, new.leaving) == ("resize", ("1", "2"), ("0",))
    assert all_formed(roster) == [ReleaseWorker("0")]
    assert roster.handle(TimePassed(), 100.0) == []
    assert roster.is_settled


def test_a_worker_that_was_told_to_go_does_not_wait_for_those_who_start() -> None:
    roster = running("01")
    assert roster.handle(ResizeWanted(("0", "1", "2")), 0.0) == [StartWorker("2")]
    new = published(roster.handle(LeaveNoticed("1"), 1.0))
    assert (new.devices, new.joining) == (("0",), ())
    assert all_formed(roster) == [ReleaseWorker("1")]
    assert published(roster.handle(JoinerReady("2"), 2.0)).devices == ("0", "2")


def test_a_job_whose_workers_are_all_told_to_go_waits_for_others_with_patience_and_then_stops() -> None:
    roster = running("0")
    assert roster.handle(ResizeWanted(("0", "1")), 0.0) == [StartWorker("1")]
    assert roster.handle(LeaveNoticed("0"), 1.0) == []  # it alone has the state
    assert roster.handle(TimePassed(), 2.0) == []
    assert PublishGeneration(Generation(1, Cause.STOP, ("0",))) in roster.handle(TimePassed(), 32.0)


def test_who_takes_over_from_a_worker_that_was_told_to_go_gets_the_state() -> None:
    roster = running("0")
    roster.handle(ResizeWanted(("0", "1")), 0.0)
    roster.handle(LeaveNoticed("0"), 1.0)
    new = published(roster.handle(JoinerReady("1"), 5.0))
    assert (new.devices, new.joining, new.sender) == (("1",), ("1",), "0")


def test_a_worker_that_was_told_to_go_and_dies_first_is_not_replaced_either() -> None:
    roster = running("012")
    roster.handle(LeaveNoticed("0"), 0.0)
    assert published(roster.handle(WorkerGone("0"), 0.1)).devices == ("1", "2")
    all_formed(roster)
    assert roster.handle(TimePassed(), 100.0) == []
    assert roster.is_settled


def test_a_notice_while_a_change_is_under_way_counts_after_it() -> None:
    roster = running("01")
    roster.handle(ResizeWanted(("0", "1", "2")), 0.0)
    roster.handle(JoinerReady("2"), 0.0)
    assert roster.handle(LeaveNoticed("1"), 0.0) == []
    assert published(all_formed(roster)).devices == ("0", "2")


def test_the_last_worker_that_is_told_to_go_stops_the_job_with_a_checkpoint() -> None:
    roster = running("0")
    assert published(roster.handle(LeaveNoticed("0"), 0.0)).cause == "stop"
    assert roster.stopping


def test_stopping_is_told_once_and_again_after_a_loss() -> None:
    roster = running("012")
    assert published(roster.handle(StopWanted(), 0.0)).cause == "stop"
    assert roster.handle(TimePassed(), 1.0) == []
    loss = published(roster.handle(WorkerGone("1"), 1.0))
    assert loss.cause == "loss"
    again = published(all_formed(roster))
    assert (again.cause, again.devices) == ("stop", ("0", "2"))
    assert again.number == loss.number + 1
    assert roster.handle(TimePassed(), 100.0) == []  # nobody is replaced


def test_stopping_dismisses_those_who_are_starting() -> None:
    roster = running("01")
    roster.handle(ResizeWanted(("0", "1", "2", "3")), 0.0)
    roster.handle(JoinerReady("2"), 0.0)
    actions = roster.handle(StopWanted(), 0.0)
    assert actions[:-1] == [KillWorker("2"), KillWorker("3")]
    assert published(actions).devices == ("0", "1")


def test_stopping_waits_for_a_change_that_is_under_way() -> None:
    roster = running("01")
    roster.handle(ResizeWanted(("0", "1", "2")), 0.0)
    roster.handle(JoinerReady("2"), 0.0)
    assert roster.handle(StopWanted(), 0.0) == []
    last = published(all_formed(roster))
    assert (last.cause, last.devices) == ("stop", ("0", "1", "2"))


def test_replacements_come_at_growing_intervals_and_at_last_the_job_gives_up() -> None:
    roster = running("01")
    now, waits = 0.0, []
    actions = roster.handle(WorkerGone("1"), now)
    all_formed(roster, now)
    while not any(isinstance(action, AbandonJob) for action in actions):
        lost = now
        while not roster.handle(TimePassed(), now):
            now += 0.05
        waits.append(now - lost)
        actions = roster.handle(WorkerGone("1"), now)  # while it starts
        assert len(waits) < 20
    assert waits == sorted(waits)
    assert waits[-1] > 4 * waits[0]
    (end,) = actions
    assert isinstance(end, AbandonJob)
    assert "lost in a row" in end.reason


def test_a_script_that_kills_whoever_joins_does_not_loop_for_ever() -> None:
    roster = running("01")
    now, deaths = 0.0, 1
    actions = roster.handle(WorkerGone("1"), now)
    while not any(isinstance(action, AbandonJob) for action in actions):
        all_formed(roster, now)
        now += 20.0
        assert roster.handle(TimePassed(), now) == [StartWorker("1")]
        roster.handle(JoinerReady("1"), now)
        all_formed(roster, now)  # it takes part for a second, and dies
        now += 1.0
        actions = roster.handle(WorkerGone("1"), now)
        deaths += 1
        assert deaths < 20
    assert deaths > 3


def test_those_who_joined_together_and_die_one_after_another_are_no_row() -> None:
    roster = running("0")
    roster.handle(ResizeWanted(tuple("01234567")), 0.0)
    for device in "1234567":
        roster.handle(JoinerReady(device), 0.0)
    all_formed(roster, 0.0)
    for now, device in enumerate("1234567", 1):  # a machine that is much too busy, say
        assert published(roster.handle(WorkerGone(device), float(now))).cause == "loss"
        all_formed(roster, float(now))
    assert roster.handle(TimePassed(), 10.0) == [StartWorker(device) for device in "1234567"]


def test_deaths_far_apart_are_never_too_many() -> None:
    roster = running("01")
    now = 0.0
    for _ in range(50):
        assert published(roster.handle(WorkerGone("1"), now)).devices == ("0",)
        all_formed(roster, now)
        now += 20.0
        assert roster.handle(TimePassed(), now) == [StartWorker("1")]
        roster.handle(JoinerReady("1"), now)
        all_formed(roster, now)
        now += 60.0
    assert roster.failures == 50


def test_without_replacement_the_job_goes_on_with_fewer_devices() -> None:
    roster = running("012", replace_lost=False)
    assert published(roster.handle(WorkerGone("2"), 0.0)).devices == ("0", "1")
    all_formed(roster)
    assert roster.handle(TimePassed(), 100.0) == []
    assert roster.is_settled


def test_without_replacement_a_job_can_be_resized_all_the_same() -> None:
    roster = running("01", replace_lost=False)
    roster.handle(WorkerGone("1"), 0.0)
    all_formed(roster)
    assert roster.handle(ResizeWanted(("0", "1", "2")), 1.0) == [StartWorker("1"), StartWorker("2")]
    assert published(all_ready(roster, "12", 1.0)).devices == ("0", "1", "2")


def test_without_replacement_a_joiner_that_dies_is_given_up() -> None:
    roster = running("01", replace_lost=False)
    roster.handle(ResizeWanted(("a",)), 0.0)
    assert roster.handle(WorkerGone("a"), 0.1) == []
    assert roster.handle(TimePassed(), 100.0) == []
    assert roster.is_settled


@pytest.mark.parametrize("devices", ["", "012345678"])
def test_a_resize_that_can_not_work_is_refused_and_changes_nothing(devices: str) -> None:
    roster = running("01", virtual_nodes=8)
    message = "8 virtual nodes, so it can use at most that many devices, not 9" if devices else "at least one device"
    with pytest.raises(MappingError, match=message):
        roster.handle(ResizeWanted(tuple(devices)), 0.0)
    assert roster.target == ("0", "1")
    assert roster.handle(TimePassed(), 1.0) == []


def test_a_resize_before_the_number_of_virtual_nodes_is_known_waits_for_it() -> None:
    roster = Roster(("0", "1"))
    assert roster.handle(ResizeWanted(("0", "1", "2")), 0.0) == []
    assert roster.handle(TimePassed(), 1.0) == []
    roster.handle(SizesKnown((1,) * 8), 0.0)
    assert roster.handle(TimePassed(), 2.0) == [StartWorker("2")]


def test_a_resize_too_large_before_the_number_of_virtual_nodes_is_known_takes_all_there_is_work_for() -> None:
    roster = Roster(("0", "1"))
    roster.handle(ResizeWanted(tuple("012345")), 0.0)
    roster.handle(SizesKnown((1,) * 3), 0.0)
    assert roster.handle(TimePassed(), 1.0) == [StartWorker("2")]
    assert published(roster.handle(JoinerReady("2"), 1.0)).devices == ("0", "1", "2")


def test_the_job_ends_when_every_script_has() -> None:
    roster = running("01")
    assert roster.handle(ScriptEnded("0"), 0.0) == []
    assert roster.handle(ScriptEnded("1"), 0.0) == [FinishJob()]


def test_nobody_is_started_once_a_script_has_ended() -> None:
    roster = running("01")
    roster.handle(ScriptEnded("0"), 0.0)
    assert roster.handle(ResizeWanted(("0", "1", "2")), 0.0) == []


def test_a_resize_that_comes_too_late_does_not_keep_the_job_from_ending() -> None:
    roster = running("01")
    roster.handle(ResizeWanted(("0", "1", "2", "3")), 0.0)
    all_ready(roster, "23")  # published, but both workers have passed their last boundary
    assert roster.handle(ScriptEnded("0"), 1.0) == []
    assert roster.handle(ScriptEnded("1"), 1.0) == [KillWorker("2"), KillWorker("3"), FinishJob()]


def test_a_death_after_the_end_of_some_scripts_is_repaired_before_the_job_ends() -> None:
    roster = running("012")
    roster.handle(ScriptEnded("0"), 0.0)
    roster.handle(ScriptEnded("1"), 0.0)
    new = published(roster.handle(WorkerGone("2"), 0.1))
    assert roster.handle(ScriptEnded("0"), 0.2) == []  # said before it had heard
    for device in "01":
        roster.handle(GroupFormed(device, new.number), 0.3)
    roster.handle(ScriptEnded("0"), 0.3)
    assert roster.handle(ScriptEnded("1"), 0.3) == [FinishJob()]


@given(st.data())
def test_rebalance_is_even_complete_and_moves_as_few_virtual_nodes_as_that_allows(data: st.DataObject) -> None:
    virtual_nodes = data.draw(st.integers(1, 40))
    names = st.integers(0, 11).map(str)
    owners = data.draw(st.lists(names, min_size=virtual_nodes, max_size=virtual_nodes))
    devices = data.draw(st.lists(names, min_size=1, max_size=min(12, virtual_nodes), unique=True))
    before = Mapping(tuple(owners))
    after = rebalance(before, devices)
    counts = Counter(after.devices)
    assert set(counts) == set(devices)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert after.virtual_nodes == virtual_nodes
    stayed = sum(old == new for old, new in zip(before.devices, after.devices, strict=True))
    assert stayed == most_that_can_stay(before, devices)


def most_that_can_stay(before: Mapping, devices: list[str]) -> int:
    """Over every even split: with no device over its share, and *larger* devices one above it."""
    share, larger = divmod(before.virtual_nodes, len(devices))
    had = Counter(before.devices)
    best = {0: 0}  # by how many larger shares were given out
    for device in devices:
        following: dict[int, int] = {}
        for given_out, kept in best.items():
            for extra in (0, 1):
                total = kept + min(had[device], share + extra)
                following[given_out + extra] = max(following.get(given_out + extra, 0), total)
        best = following
    return best[larger]


@given(st.integers(1, 40), st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_a_job_resized_many_times_stays_even(virtual_nodes: int, sizes: list[int]) -> None:
    mapping = spread(virtual_nodes, ["0"])
    for size in sizes:
        devices = [str(device) for device in range(min(size, virtual_nodes))]
        mapping = rebalance(mapping, devices)
        assert mapping.waves == -(-virtual_nodes // len(devices))


@settings(deadline=None)
@given(st.data())
def test_through_any_history_every_virtual_node_has_a_worker_and_the_job_settles(data: st.DataObject) -> None:
    """Random resizes, deaths and notices at random moments; afterwards everybody does what is asked of them."""
    roster = running("012", virtual_nodes=6)
    alive, now = set("012"), 0.0

    def obey(actions: list[RosterAction]) -> bool:
        """Do what is asked; return whether the job can go on."""
        for action in actions:
            if isinstance(action, StartWorker):
                alive.add(action.device)
            elif isinstance(action, KillWorker):
                if action.device in alive:
                    alive.remove(action.device)
                    if not obey(roster.handle(WorkerGone(action.device), now)):
                        return False
            elif isinstance(action, ReleaseWorker):
                alive.discard(action.device)
            elif isinstance(action, PublishGeneration):
                owners = action.generation.owners
                assert owners is None or set(owners) == set(action.generation.devices)
            elif isinstance(action, AbandonJob):
                return False
        return True

    def progress() -> bool:
        """Every worker goes one step on."""
        for device in sorted(roster.starting & alive):
            if not obey(roster.handle(JoinerReady(device), now)):
                return False
        pending = roster.pending
        for device in pending.devices if pending is not None else ():
            assert device in alive
            if device in pending.joining:
                roster.handle(StateReceived(device), 0.0)
            if not obey(roster.handle(GroupFormed(device, pending.number), now)):
                return False
        return obey(roster.handle(TimePassed(), now))

    for _ in range(data.draw(st.integers(1, 12))):
        now += data.draw(st.sampled_from([0.0, 0.3, 15.0]))
        what = data.draw(st.sampled_from(["resize", "gone", "leaves", "progress", "holds"]))
        if what == "resize":
            wanted = data.draw(st.lists(st.sampled_from("012345"), min_size=1, max_size=6, unique=True))
            going = obey(roster.handle(ResizeWanted(tuple(wanted)), now))
        elif what == "progress" or not alive:
            going = progress()
        elif what == "holds":
            for device in roster.pending.joining[:1] if roster.pending is not None else ():
                roster.handle(StateReceived(device), 0.0)
            going = True
        else:
            device = data.draw(st.sampled_from(sorted(alive)))
            alive.discard(device) if what == "gone" else None
            going = obey(
                roster.handle(WorkerGone(device), now) if what == "gone" else roster.handle(LeaveNoticed(device), now)
            )
        if not going or roster.stopping:
            return
    for _ in range(20):
        if not roster.is_settled:
            now += 20.0
            if not progress():
                return
    assert roster.is_settled
    assert set(roster.generation.devices) <= alive
    assert roster.mapping is not None
    assert set(roster.mapping.devices) == set(roster.generation.devices) == set(roster.target)


def test_a_mapping_by_speed_that_is_due_while_a_loss_is_repaired_comes_after_it() -> None:
    roster = Roster(tuple("012"), speeds=Speeds())
    published(roster.handle(WorkerGone("1"), 0.0))
    assert roster.handle(SizesKnown((1,) * 4), 0.0) == []
    new = published(all_formed(roster, 1.0))
    assert (new.cause, set(new.owners or ())) == ("remap", {"0", "2"})
    assert all_formed(roster, 1.0) == [StartWorker("1")]  # and then the replacement
    assert roster.remaps == 1


def test_a_remap_moves_nodes_among_the_same_workers_and_waits_its_turn() -> None:
    roster = running("01", virtual_nodes=4)
    new = published(roster.handle(RemapWanted(Mapping(("0", "0", "0", "1"))), 0.0))
    assert (new.cause, new.devices, new.joining, new.leaving) == ("remap", ("0", "1"), (), ())
    assert roster.handle(RemapWanted(Mapping(("0", "1", "1", "1"))), 0.0) == []
    assert roster.handle(ResizeWanted(tuple("0")), 0.0) == []
    (publish,) = all_formed(roster)
    assert isinstance(publish, PublishGeneration)
    assert publish.generation.cause == "resize"
    assert (
        roster.handle(RemapWanted(Mapping(("0", "0", "0", "1"))), 0.0) == []
    )  # for workers that are no longer all there
