"""Do all workers make the same call? If not, the error names both calls, and what may have made them differ."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from tests.train.several import OneOfSeveral
from virtualflow.errors import CollectiveError
from virtualflow.testing import ThreadGroup, run_together
from virtualflow.train.announcement import CALLS, Announcement

STEP, SAVE, END = (CALLS.index(name) for name in ("step", "save", "end of the script"))


class Noting(OneOfSeveral):
    seen_by_all = -1

    def all_have_seen(self, generation: int) -> None:
        self.seen_by_all = generation


def checked(*calls: tuple[int, int, int, int], raised: tuple[str, ...] = ("", "")) -> list[Any]:
    """What comes of these calls on as many workers: an error, or the generation that all have seen."""

    def check(rank: int, group: ThreadGroup) -> Any:
        membership = Noting(group)
        announcement = Announcement(group, [torch.tensor(call) for call in calls], membership, raised[rank])
        try:
            announcement.check()
        except CollectiveError as error:
            return str(error)
        return membership.seen_by_all

    return run_together(*(partial(check, rank, group) for rank, group in enumerate(ThreadGroup.of(len(calls)))))


def test_the_same_call_tells_all_the_newest_generation_that_all_have_seen() -> None:
    assert checked((STEP, 4, 0, 3), (STEP, 4, 0, 2)) == [2, 2]


def test_different_calls_are_both_named() -> None:
    for text in checked((STEP, 4, 0, 1), (SAVE, 4, 0, 1)):
        assert "device 0 called step (global step 4) while device 1 called save (global step 4)" in text
        assert "if trainer.is_lead" in text


def test_the_same_step_with_other_batches_is_said_to_be_that() -> None:
    for text in checked((STEP, 4, 7, 1), (STEP, 4, 8, 1)):
        assert "devices 0 and 1 have different batches" in text


def test_an_error_that_one_script_has_caught_is_the_likely_cause() -> None:
    for text in checked((STEP, 4, 0, 1), (SAVE, 4, 0, 1), raised=("", "ValueError: no")):
        assert text.startswith("on device 1, ValueError: no. The script has caught that")


def test_a_worker_at_its_end_is_not_asked_for_errors() -> None:
    for text in checked((STEP, 4, 0, 1), (END, 4, 0, 1), raised=("ValueError: no", "")):
        assert "while device 1 called end of the script" in text


def test_one_that_is_alone_has_nothing_to_compare() -> None:
    (group,) = ThreadGroup.of(1)
    membership = Noting(group)
    Announcement(None, [], membership).check()
    assert membership.seen_by_all == membership.seen
