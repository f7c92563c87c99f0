"""Calls that a job has made and a worker makes again: what is recorded, for whom, and when it is given back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from virtualflow.errors import PeerLostError
from virtualflow.train.early_results import Recorded
from virtualflow.train.solo import Solo


class Job(Solo):
    """A membership that keeps what is recorded, and gives it to a worker that is joining."""

    def __init__(self, past: list[Any] | None = None) -> None:
        super().__init__()
        self.joining = past is not None  # type: ignore[misc]
        self.past = past if past is not None else []

    def record(self, result: Any) -> None:
        self.past.append(result)

    def recorded(self) -> Any:
        return self.past.pop(0)


def never() -> Any:
    raise AssertionError("this call must not be made again")


def fails() -> Any:
    raise ValueError("odd")


def test_what_comes_before_the_first_epoch_reaches_joiners_bit_for_bit() -> None:
    job, packed = Job(), torch.arange(5, dtype=torch.uint8)
    recorded = Recorded(job)
    assert recorded(lambda: 3) == 3
    assert recorded(lambda: None) is None
    assert recorded(lambda: packed) is packed
    joiner = Recorded(Job(list(job.past)))
    assert (joiner(never), joiner(never)) == (3, None)
    assert torch.equal(joiner(never), packed)


def test_an_error_is_raised_again_where_the_call_is_not_made() -> None:
    job = Job()
    with pytest.raises(ValueError, match="odd"):
        Recorded(job)(fails)
    with pytest.raises(ValueError, match="odd"):
        Recorded(Job(list(job.past)))(never)


def test_the_loss_of_a_peer_is_no_result() -> None:
    def lost() -> Any:
        raise PeerLostError("gone")

    job = Job()
    recorded = Recorded(job)
    with pytest.raises(PeerLostError):
        recorded(lost)
    assert (job.past, recorded.section) == ([], [])


def in_epochs(made: Callable[[], Any]) -> Recorded:
    """A recorder of a job that has begun an epoch, after one call before it and one in it."""
    recorded = Recorded(Job())
    recorded(lambda: 1)
    recorded.new_section()
    recorded(made)
    return recorded


def test_once_epochs_have_begun_a_section_is_kept_and_no_longer_sent() -> None:
    job = Job()
    recorded = Recorded(job)
    recorded(lambda: 1)
    assert recorded.section == [1]
    recorded.new_section()
    assert recorded.section == []
    recorded(lambda: 2)
    assert (recorded.section, recorded.between, job.past) == ([2], [], [1])


def test_in_a_pass_over_the_data_nothing_is_kept() -> None:
    recorded = in_epochs(lambda: 2)
    recorded.in_pass = True
    recorded(lambda: 3)
    assert recorded.section == [2]
    recorded.new_section()
    assert (recorded.section, recorded.in_pass) == ([], False)


def test_what_lies_between_two_loops_over_epochs_is_kept_apart() -> None:
    recorded = in_epochs(lambda: 2)
    recorded.leave_epochs()
    recorded(lambda: 4)
    assert (recorded.between, recorded.section) == ([4], [2])


def test_a_worker_that_comes_to_the_loop_later_is_given_what_the_job_got_there() -> None:
    recorded = Recorded(Job())
    recorded.replay([5, 6])
    assert recorded(lambda: 1) == 1  # before the loop: not yet what is expected
    recorded.new_section()
    assert recorded.section == [5, 6]
    assert (recorded(never), recorded(never)) == (5, 6)
    assert recorded(lambda: 7) == 7
    assert recorded.section == [5, 6, 7]


def test_somebody_elses_loop_makes_nothing_again() -> None:
    recorded = Recorded(Job())
    recorded.replay([5, 6])
    recorded.enter_loop()
    assert (recorded(lambda: 7), recorded.section) == (7, [])
