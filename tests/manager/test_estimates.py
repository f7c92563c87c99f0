"""How long a job will take."""

from __future__ import annotations

from pathlib import Path

import pytest

from virtualflow.core.job_description import JobDescription
from virtualflow.core.job_terms import JobTerms
from virtualflow.events import EpochStarted
from virtualflow.job.history import Watch
from virtualflow.manager.estimates import (
    TURN_SECONDS,
    UNKNOWN_SECONDS,
    EstimateTurns,
    done_seconds,
    expected_seconds,
    new_estimate,
)
from virtualflow.manager.record import Record

RECORD = Record("id", JobDescription("train.py"), "/", "python", JobTerms(demand=4, virtual_nodes=8), 0.0)


def watch(steps: int | None = None, **seen: object) -> Watch:
    """What has been seen of a job that has so many *steps*, if it has said so."""
    watch = Watch(Path("none"), **seen)  # type: ignore[arg-type]
    if steps is not None:
        watch.add(0.0, EpochStarted(0, epochs=1, steps=steps, first_step=0))
    return watch


def test_the_owners_word_counts_until_steps_show_more() -> None:
    assert expected_seconds(RECORD) == UNKNOWN_SECONDS
    assert expected_seconds(RECORD.changed(expect_seconds=60.0)) == 60.0
    assert new_estimate(RECORD, watch()) is None


def test_an_estimate_is_for_the_full_demand() -> None:
    seen = watch(steps=1000, step_seconds=0.5, devices=2)
    assert new_estimate(RECORD, seen) == 250.0  # on four devices


def test_an_estimate_that_hardly_differs_is_nothing_new() -> None:
    seen = watch(steps=1000, step_seconds=0.5, devices=2)
    assert new_estimate(RECORD.changed(expect_seconds=255.0), seen) is None


@pytest.mark.parametrize(("step", "done"), [(0, 0.0), (50, 30.0), (200, 60.0)])
def test_what_is_done_is_a_part_of_the_expected_time(step: int, done: float) -> None:
    assert done_seconds(RECORD.changed(expect_seconds=60.0), watch(step=step, steps=100)) == done


def test_jobs_that_began_together_take_turns_and_none_is_left_out() -> None:
    turns, jobs = EstimateTurns(), [f"job-{number}" for number in range(1000)]
    seen = [turns.take(jobs, now=0.01 * tick) for tick in range(40)]
    assert max(map(len, seen)) < len(jobs) / 20
    assert sorted(job for some in seen for job in some) == sorted(jobs)  # each once within a turn's time
    assert turns.take(jobs, now=TURN_SECONDS) == seen[0]


def test_a_few_jobs_are_all_looked_at_at_once_and_again_in_time() -> None:
    turns, jobs = EstimateTurns(), ["a", "b", "c"]
    assert turns.take(jobs, now=1.0) == jobs
    assert turns.take(jobs, now=1.0 + TURN_SECONDS / 2) == []
    turns.forget("b")
    assert turns.take(jobs, now=1.0 + TURN_SECONDS / 2) == ["b"]
    assert turns.take(jobs, now=1.0 + TURN_SECONDS) == ["a", "c"]
