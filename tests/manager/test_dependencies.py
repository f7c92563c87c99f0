"""Jobs that follow others: what they still wait for, and when they can't run any more."""

from __future__ import annotations

from typing import cast

import pytest

from tests.manager.test_estimates import RECORD
from virtualflow.core.job_state import JobState
from virtualflow.manager.dependencies import Dependencies, why_waiting
from virtualflow.manager.record import Record
from virtualflow.manager.records import Records

FOLLOWER = RECORD.changed(id="follower", after=("a", "b"))


class Kept(dict[str, Record]):
    """Stands for the manager's records."""

    find = dict.get


def records(**states: JobState) -> Records:
    return cast(Records, Kept({name: RECORD.changed(id=name, state=state) for name, state in states.items()}))


def test_what_is_done_is_not_awaited() -> None:
    known = records(a=JobState.DONE, b=JobState.RUNNING)
    assert Dependencies.of(FOLLOWER, known) == Dependencies(("b",), None)
    assert why_waiting(FOLLOWER, known) == "it starts after b (train, RUNNING)"


def test_nothing_is_awaited_once_all_are_done() -> None:
    known = records(a=JobState.DONE, b=JobState.DONE)
    assert Dependencies.of(FOLLOWER, known) == Dependencies((), None)
    assert why_waiting(FOLLOWER, known) == ""


def test_a_job_of_which_there_is_no_record_may_still_be_done() -> None:
    known = records(a=JobState.DONE)
    assert Dependencies.of(FOLLOWER, known) == Dependencies(("b",), None)
    assert why_waiting(FOLLOWER, known) == "it starts after b (no record)"


@pytest.mark.parametrize(("state", "how"), [(JobState.FAILED, "failed"), (JobState.CANCELLED, "been cancelled")])
def test_a_job_can_not_follow_one_that_ended_in_another_way_than_well(state: JobState, how: str) -> None:
    broken = Dependencies.of(FOLLOWER, records(a=JobState.RUNNING, b=state))
    assert broken.why_not == f"job b (train) has {how}, and this one was to start after it"
    assert Dependencies.of(FOLLOWER, records(a=JobState.DONE, b=JobState.PAUSED)).why_not == ""
