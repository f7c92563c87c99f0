"""A job's life as records, events and effects. No process, no file, no clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from virtualflow.core.job_description import JobDescription
from virtualflow.core.job_state import JobState
from virtualflow.core.job_terms import JobTerms
from virtualflow.errors import ManagerError
from virtualflow.manager import record as recorded
from virtualflow.manager.lifecycle import (
    MAX_CRASHES,
    CancelRequested,
    CoordinatorFound,
    DevicesWithdrawn,
    Effect,
    Ended,
    HowEnded,
    Launched,
    LifecycleEvent,
    ManagerReplaced,
    PauseRequested,
    ResumeRequested,
    ShutdownRequested,
    after,
    run_seconds,
)
from virtualflow.manager.record import Record, Wish
from virtualflow.manager.takeover import taken_over

NEW = Record("a", JobDescription("job.py"), "/", "python", JobTerms(demand=4), submitted=0.0, devices=("0", "1"))
RUNNING = replace(NEW, state=JobState.RUNNING, started=1.0, launched=10.0, launches=1, token="t")
OVER = (Effect.ERASE_VARIABLES, Effect.WRITE_STATE, Effect.LEAVE_SCHEDULER)


def changes(before: Record, event: LifecycleEvent) -> tuple[dict[str, Any], tuple[Effect, ...]]:
    """What differs after *event*, and the effects."""
    record, effects = after(before, event)
    names = (name for name in Record.__slots__ if getattr(record, name) != getattr(before, name))
    return {name: getattr(record, name) for name in names}, effects


def test_a_launch_is_counted_and_its_first_start_stays() -> None:
    launched = {"state": "RUNNING", "token": "t", "launches": 1, "started": 5.0, "launched": 5.0}
    assert changes(NEW, Launched("t", 5.0)) == (launched, ())
    again = replace(NEW, started=1.0, launches=1, token="t")
    assert changes(again, Launched("u", 5.0)) == (
        {"state": "RUNNING", "token": "u", "launches": 2, "launched": 5.0},
        (),
    )
    assert changes(again, CoordinatorFound(5.0)) == ({"state": "RUNNING", "launched": 5.0}, ())


def test_a_pause_stops_what_runs_and_holds_back_what_waits() -> None:
    gone = {"devices": ()}
    assert changes(RUNNING, PauseRequested(20.0)) == ({"wish": Wish.PAUSE, **gone}, (Effect.LEAVE_SCHEDULER,))
    assert changes(NEW, PauseRequested(20.0)) == (
        {"state": JobState.PAUSED, **gone},
        (Effect.WRITE_STATE, Effect.LEAVE_SCHEDULER),
    )
    pausing = after(RUNNING, PauseRequested(20.0))[0]
    assert changes(pausing, PauseRequested(21.0)) == ({}, ())
    assert changes(pausing, ResumeRequested(21.0)) == ({"wish": Wish.SUSPEND}, (Effect.ENTER_SCHEDULER,))
    stopped = {"state": JobState.PAUSED, "wish": None, "run_seconds": 20.0, "launched": None}
    assert changes(pausing, Ended(HowEnded.STOPPED, 30.0)) == (stopped, (Effect.WRITE_STATE,))


def test_only_what_is_paused_is_resumed() -> None:
    paused = replace(NEW, state=JobState.PAUSED, trouble="somebody has to look")
    resumed = {"state": JobState.QUEUED, "trouble": None}
    assert changes(paused, ResumeRequested(20.0)) == (resumed, (Effect.WRITE_STATE, Effect.ENTER_SCHEDULER))
    for record in (NEW, RUNNING):
        with pytest.raises(ManagerError, match=f"is not paused: its state is {record.state}"):
            after(record, ResumeRequested(20.0))


def test_a_cancelled_job_is_over_once_its_processes_are_gone() -> None:
    over = {"state": JobState.CANCELLED, "ended": 20.0, "devices": ()}
    assert changes(NEW, CancelRequested(20.0)) == (over, OVER)
    cancelling, effects = after(RUNNING, CancelRequested(20.0))
    assert (cancelling.state, cancelling.wish, effects) == ("RUNNING", Wish.CANCEL, (Effect.LEAVE_SCHEDULER,))
    for how in (HowEnded.STOPPED, HowEnded.CRASHED, HowEnded.FAILED, HowEnded.NOT_LAUNCHED, HowEnded.UNCLEAR):
        record, effects = after(cancelling, Ended(how, 30.0))
        assert (record.state, record.run_seconds, effects) == ("CANCELLED", 20.0, OVER)
    assert after(cancelling, Ended(HowEnded.DONE, 30.0))[0].state == "DONE"  # it came to its end before


@pytest.mark.parametrize("wish", [Wish.SUSPEND, Wish.DOWN])
def test_a_job_that_was_stopped_for_others_waits_and_keeps_its_claim(wish: Wish) -> None:
    record, effects = after(replace(RUNNING, wish=wish), Ended(HowEnded.STOPPED, 30.0))
    assert (record.state, record.wish, record.devices) == ("QUEUED", None, ("0", "1"))
    assert effects == (Effect.WRITE_STATE,)


def test_a_job_that_its_owner_stops_by_other_means_is_cancelled() -> None:
    assert after(RUNNING, Ended(HowEnded.STOPPED, 30.0))[0].state == "CANCELLED"


def test_a_script_that_fails_is_tried_again_as_often_as_its_owner_allows() -> None:
    retried, effects = after(RUNNING.changed(retries=1), Ended(HowEnded.FAILED, 30.0, text="no good"))
    assert (retried.state, retried.failed, retried.failure, effects) == ("QUEUED", 1, None, (Effect.WRITE_STATE,))
    again = replace(retried, state=JobState.RUNNING, launched=40.0)
    failed, effects = after(again, Ended(HowEnded.FAILED, 50.0, text="no good\n"))
    assert (failed.state, failed.failure, failed.ended, failed.devices) == ("FAILED", "no good", 50.0, ())
    assert effects == OVER


def test_crashes_are_counted_only_while_the_job_does_not_get_any_further() -> None:
    record = RUNNING
    for crash in range(1, MAX_CRASHES + 1):
        record = replace(after(record, Ended(HowEnded.CRASHED, 30.0, step=0))[0], state=JobState.RUNNING)
        assert record.crashes == crash
    further = after(record, Ended(HowEnded.CRASHED, 30.0, step=7))[0]
    assert (further.state, further.crashes, further.last_step) == ("QUEUED", 1, 7)
    given_up = after(record, Ended(HowEnded.CRASHED, 30.0, step=0, text="killed"))[0]
    assert given_up.state == "FAILED"
    assert given_up.failure == f"killed\nIt ended {MAX_CRASHES + 1} times in a row without getting any further."


def test_an_end_that_nobody_can_explain_waits_for_a_decision() -> None:
    record, effects = after(RUNNING, Ended(HowEnded.UNCLEAR, 30.0, text="its state is damaged"))
    assert (record.state, record.devices) == ("PAUSED", ())
    assert record.trouble == "its state is damaged. `vf resume a` continues it from its last checkpoint"
    assert effects == (Effect.WRITE_STATE, Effect.LEAVE_SCHEDULER)


@pytest.mark.parametrize("how", list(HowEnded))
def test_whatever_ends_the_run_no_wish_and_no_launch_is_left(how: HowEnded) -> None:
    for wish in (None, *Wish):
        record, effects = after(replace(RUNNING, wish=wish), Ended(how, 30.0))
        assert (record.wish, record.launched, record.run_seconds) == (None, None, 20.0)
        assert record.state != "RUNNING"
        assert Effect.WRITE_STATE in effects
        assert (Effect.ERASE_VARIABLES in effects) == record.is_over == (record.ended is not None)


def test_the_first_wish_stands() -> None:
    assert changes(RUNNING, DevicesWithdrawn()) == ({"wish": Wish.SUSPEND}, ())
    assert changes(RUNNING, ShutdownRequested()) == ({"wish": Wish.DOWN}, ())
    for event in (DevicesWithdrawn(), ShutdownRequested(), ManagerReplaced()):
        assert changes(replace(RUNNING, wish=Wish.CANCEL), event) == ({}, ())
    assert changes(replace(RUNNING, wish=Wish.DOWN), ManagerReplaced()) == ({"wish": Wish.SUSPEND}, ())


def test_a_clock_that_was_set_back_takes_no_time_away() -> None:
    assert run_seconds(RUNNING, 25.0) == 15.0
    assert run_seconds(RUNNING, 5.0) == run_seconds(NEW, 5.0) == 0.0


def test_no_device_is_left_to_two_jobs_and_none_that_the_cluster_lacks() -> None:
    first, second = RUNNING, replace(RUNNING, id="b", devices=("1", "2", "9"))
    beside = replace(RUNNING, id="c", devices=("0",), beside="a")
    paused, pausing = replace(NEW, id="d", state=JobState.PAUSED), replace(RUNNING, id="e", wish=Wish.PAUSE)
    result = taken_over([first, second, beside, replace(NEW, id="f"), paused, pausing], ["0", "1", "2", "3"])
    assert [(record.id, record.devices) for record in result.running] == [("a", ("0", "1")), ("b", ("2",))]
    assert [(record.id, record.devices, record.beside) for record in result.waiting] == [
        ("c", (), None),
        ("f", (), None),
    ]


def test_a_record_is_read_as_it_was_written_and_nonsense_is_refused() -> None:
    record = replace(
        RUNNING, wish=Wish.PAUSE, description=JobDescription("a.py", ("\udc80",), emulated={"0": {"x": 1}})
    )
    assert recorded.from_json(recorded.to_json(record)) == record
    whole = recorded.to_json(record)
    for damage in (
        "{",
        "[]",
        whole.replace('"RUNNING"', '"ASLEEP"'),
        whole.replace('"priority": 1.0', '"priority": "x"'),
    ):
        assert damage != whole
        with pytest.raises(ValueError):  # noqa: PT011  (each damage has its own words)
            recorded.from_json(damage)
