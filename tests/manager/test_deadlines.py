"""Whether a job will end in time: what is said of one that waits, runs, or has ended."""

from __future__ import annotations

import pytest

from tests.manager.test_estimates import RECORD, watch
from virtualflow.core.job_state import JobState
from virtualflow.manager.deadlines import forecast
from virtualflow.manager.record import Record
from virtualflow.manager.scheduling import START_SECONDS

BY, HOUR = 10_000.0, 3600.0
DUE = RECORD.changed(by=BY)


def ended(state: JobState, seconds: float) -> Record:
    return DUE.changed(state=state, ended=seconds)


def test_a_job_without_a_deadline_has_no_outlook() -> None:
    assert forecast(RECORD, None, 5.0, 0.0) is None


@pytest.mark.parametrize(
    ("record", "text", "late"),
    [
        (ended(JobState.DONE, BY), "met by 0 s", False),
        (ended(JobState.DONE, BY - 59.4), "met by 59 s", False),
        (ended(JobState.DONE, BY - 60), "met by 1 min", False),
        (ended(JobState.DONE, BY + 1), "missed by 1 s", True),
        (ended(JobState.DONE, BY + 2 * HOUR + 61), "missed by 2 h 1 min", True),
        (ended(JobState.FAILED, BY - 100), "not met: the job has not come to its end", True),
    ],
)
def test_a_job_that_has_ended_has_met_it_or_not(record: Record, text: str, late: bool) -> None:
    outlook = forecast(record, None, None, now=BY + HOUR)
    assert outlook is not None
    assert (outlook.text, outlook.late) == (text, late)


@pytest.mark.parametrize(
    ("eta", "text", "late"),
    [(100.0, "will be met, 15 min early", False), (1100.0, "will be missed by 1 min at the present speed", True)],
)
def test_of_a_job_that_runs_its_speed_decides(eta: float, text: str, late: bool) -> None:
    outlook = forecast(DUE.changed(state=JobState.RUNNING), None, eta, now=BY - 1000.0)
    assert outlook is not None
    assert (outlook.text, outlook.ends, outlook.late) == (text, BY - 1000.0 + eta, late)


def test_of_a_job_that_waits_it_is_open_until_it_can_only_be_missed() -> None:
    waiting = DUE.changed(expect_seconds=1000.0)
    open_, hopeless = (forecast(waiting, None, None, now) for now in (BY - 2000.0, BY - 1000.0))
    assert open_ is not None
    assert hopeless is not None
    assert (open_.late, hopeless.late) == (None, True)
    assert open_.text == "will be met if it has all its devices within 16 min"
    assert hopeless.ends == BY + START_SECONDS
    # Half of it is done.
    half = forecast(waiting, watch(step=50, steps=100), None, now=BY - 1000.0)
    assert half is not None
    assert half.late is None


def test_of_a_job_of_unknown_length_only_the_past_is_known() -> None:
    early, late = (forecast(DUE, None, None, now) for now in (BY - 1, BY + 1))
    assert early is not None
    assert late is not None
    assert (early.late, late.late, late.text) == (None, True, "already missed")
    assert "--expect" in early.text
