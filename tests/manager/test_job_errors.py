"""An error of one job is logged once, is shown until its action works again, and stops no other job."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from virtualflow.manager.job_errors import JobErrors


def fails_for(*failing: str) -> Callable[[str], None]:
    def action(job_id: str) -> None:
        if job_id in failing:
            raise OSError(f"no folder of {job_id}")

    return action


def test_an_error_of_one_job_stops_no_other() -> None:
    changes: list[str] = []
    errors = JobErrors(lambda: changes.append("changed"))
    assert errors.for_each(fails_for("b"), ["a", "b", "c"]) == ["a", "c"]
    assert errors.last_line("b") == "OSError: no folder of b"
    assert errors.last_line("a") == ""
    assert changes == ["changed"]


def test_an_error_that_comes_again_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    changes: list[str] = []
    errors = JobErrors(lambda: changes.append("changed"))
    action = fails_for("b")
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            errors.for_each(action, ["b"])
    assert len(caplog.records) == len(changes) == 1


def test_an_error_is_forgotten_when_the_action_works_again() -> None:
    errors = JobErrors(lambda: None)
    errors.for_each(fails_for("b"), ["b"])
    assert errors.for_each(fails_for(), ["b"]) == ["b"]
    assert errors.last_line("b") == ""
