"""The states of a job."""

from __future__ import annotations

import json

import pytest

from virtualflow.core.job_state import JobState


@pytest.mark.parametrize("state", JobState)
def test_a_state_is_its_name_in_every_file_and_message(state: JobState) -> None:
    assert JobState(json.loads(json.dumps(state))) is state
    assert state == state.name


def test_what_has_ended_is_at_rest_and_what_a_coordinator_runs_is_not() -> None:
    assert {state for state in JobState if state.is_ended} == {"DONE", "FAILED", "CANCELLED"}
    assert {state for state in JobState if state.is_at_rest and not state.is_ended} == {"QUEUED", "PAUSED"}
