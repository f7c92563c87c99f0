"""A few examples of the epoch's dataset, by digest: whoever comes into a running epoch must have the same ones.

A dataset that is made while the job runs (labels that the model has guessed, a memory of what an agent has played) may
be another one on a worker that joins, or in a job that resumes.
"""

from __future__ import annotations

import time

import numpy as np

from virtualflow.errors import HiddenStateError
from virtualflow.train.data import Feed
from virtualflow.train.replay import digest_of
from virtualflow.train.seeding import generators_kept

MOST = 256
LEAST = 4
BUDGET_SECONDS = 0.1  # beyond the least


class Samples:
    """Looks at the dataset of the running epoch."""

    def __init__(self) -> None:
        self._feed: Feed | None = None
        self._epoch = 0
        self._length = 0

    def begin(self, feed: Feed, epoch: int, length: int) -> None:
        """A pass over a dataset of *length* examples begins; 0 for one that can't be looked into."""
        self._feed, self._epoch, self._length = feed, epoch, length

    def take(self) -> dict[int, str]:
        """Digests of some examples as they are now; of none where only loader processes may touch the dataset."""
        if self._feed is None or self._feed.fetches_ahead or not self._length:
            return {}
        places = np.linspace(0, self._length - 1, min(MOST, self._length)).astype(int).tolist()
        order = [*places[:: max(1, len(places) // LEAST)], *reversed(places)]
        until = time.perf_counter() + BUDGET_SECONDS
        digests: dict[int, str] = {}
        with generators_kept():
            for index in dict.fromkeys(order):
                if len(digests) >= LEAST and time.perf_counter() > until:
                    break
                digests[index] = self._digest(index)
        return digests

    def check(self, theirs: dict[int, str], where: str) -> None:
        """Refuse a dataset whose examples are others than *theirs*; *where* says who has it."""
        if self._feed is None or self._feed.fetches_ahead or not self._length:
            return
        with generators_kept():
            for index, digest in theirs.items():
                if index >= self._length or self._digest(index) != digest:
                    raise HiddenStateError(_reason(index, self._epoch, where))

    def _digest(self, index: int) -> str:
        assert self._feed is not None
        try:
            return digest_of(self._feed.example(self._epoch, index))
        except Exception as error:  # an example that can't be read is one, too: the script may skip its batch
            return digest_of([type(error).__name__, str(error)])


def _reason(index: int, epoch: int, where: str) -> str:
    return (
        f"example {index} of epoch {epoch}'s dataset is another one {where}. The dataset depends on something that the "
        "job does not keep: on a list or memory that is filled while the job runs (put it into state=[...]), on what "
        "the model gave at the top of the epoch (take it from trainer.predict, whose results are handed on), on a "
        "generator or a cache of its own, or on a file that has changed."
    )
