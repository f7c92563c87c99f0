"""Which batches a set of devices can process in a given time, if every type may choose its node size.

The batches are a set of whole numbers, kept as the bits of one large integer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from virtualflow.solver.node_shares import SLACK, Kind, Share, evenly

MOST_WORK = 3e8  # array elements touched while looking for the fewest devices; beyond, few is good enough


class Batches:
    """The batches that so many devices of each pool can process within a limit."""

    def __init__(self, choices: Sequence[Sequence[Kind]], counts: Sequence[int], batch_size: int) -> None:
        self._choices = [(kinds, count) for kinds, count in zip(choices, counts, strict=True) if kinds and count]
        # Fast ones last: the way back from the batch begins with them, so that slow ones stay unused if they can.
        self._choices.sort(key=lambda entry: -min(kind.seconds / kind.node_size for kind in entry[0]))
        self._batch_size = batch_size

    def could_meet(self, limit: float) -> bool:
        """Whether the examples would be enough, if any number of them could be had."""
        room = 0
        for kinds, count in self._choices:
            room += max(self._nodes(kind, count, limit) * kind.node_size for kind in kinds)
        return room >= self._batch_size

    def meets(self, limit: float) -> bool:
        return bool(self._reached(limit)[-1] >> self._batch_size & 1)

    def shortest(self, limit: float) -> float:
        """The smallest limit that meets the batch; *limit* is one that does."""
        low, high = 0.0, limit if math.isfinite(limit) else self._alone()
        for _ in range(50):  # what could not do at all, first
            middle = (low + high) / 2
            low, high = (low, middle) if self.could_meet(middle) else (middle, high)
        low, high = low * (1 - SLACK), (limit if math.isfinite(limit) else self._alone()) * (1 + SLACK)
        times = sorted(
            {
                kind.time(nodes)
                for kinds, _ in self._choices
                for kind in kinds
                for nodes in range(max(1, kind.fits(low)), kind.fits(high) + 1)
                if low <= kind.time(nodes) <= high
            }
        )
        first, last = 0, len(times) - 1
        while first < last:
            middle_place = (first + last) // 2
            if self.meets(times[middle_place]):
                last = middle_place
            else:
                first = middle_place + 1
        return times[first]

    def _alone(self) -> float:
        """Enough for any batch that can be met at all."""
        return max(kind.time(self._batch_size) for kinds, _ in self._choices for kind in kinds)

    def _nodes(self, kind: Kind, count: int, limit: float) -> int:
        if math.isinf(limit):
            return self._batch_size // kind.node_size
        return min(count * kind.fits(limit), self._batch_size // kind.node_size)

    def _reached(self, limit: float) -> list[int]:
        """After each pool, the batches that can be made, as bits."""
        mask = (1 << (self._batch_size + 1)) - 1
        reached = [1]
        for kinds, count in self._choices:
            bits = reached[-1]
            for kind in kinds:
                bits |= _spread(reached[-1], kind.node_size, self._nodes(kind, count, limit)) & mask
            reached.append(bits)
        return reached

    def shares(self, limit: float) -> list[Share]:
        """A plan within *limit* that meets the batch with as few devices as possible."""
        work = sum(
            self._nodes(kind, count, limit) * self._batch_size for kinds, count in self._choices for kind in kinds
        )
        steps = self._fewest(limit) if work <= MOST_WORK else self._any(limit)
        shares = []
        for kind, nodes in steps:
            shares += evenly(kind, math.ceil(nodes / kind.fits(limit)), nodes)
        return shares

    def _any(self, limit: float) -> list[tuple[Kind, int]]:
        reached, left, steps = self._reached(limit), self._batch_size, []
        for place in range(len(self._choices) - 1, -1, -1):
            kinds, count = self._choices[place]
            options = (
                (nodes * kind.node_size, kind, nodes)
                for kind in kinds
                for nodes in range(min(self._nodes(kind, count, limit), left // kind.node_size), -1, -1)
                if reached[place] >> (left - nodes * kind.node_size) & 1
            )
            examples, kind, nodes = max(options, key=lambda option: option[0])
            left -= examples
            if nodes:
                steps.append((kind, nodes))
        return steps

    def _fewest(self, limit: float) -> list[tuple[Kind, int]]:
        """By how many devices each batch takes at least, pool after pool."""
        never = np.iinfo(np.int64).max // 2
        costs = np.full(self._batch_size + 1, never, dtype=np.int64)
        costs[0] = 0
        history = []
        for kinds, count in self._choices:
            new, choice = costs.copy(), np.full((self._batch_size + 1, 2), -1, dtype=np.int64)
            for number, kind in enumerate(kinds):
                for nodes in range(1, self._nodes(kind, count, limit) + 1):
                    shift = nodes * kind.node_size
                    taken = costs[: self._batch_size + 1 - shift] + math.ceil(nodes / kind.fits(limit))
                    better = np.nonzero(taken < new[shift:])[0] + shift
                    new[better] = taken[better - shift]
                    choice[better] = (number, nodes)
            costs = new
            history.append((kinds, choice))
        steps, left = [], self._batch_size
        for kinds, choice in reversed(history):
            number, nodes = (int(each) for each in choice[left])
            if number >= 0:
                steps.append((kinds[number], nodes))
                left -= nodes * kinds[number].node_size
        return steps


def _spread(bits: int, step: int, times: int) -> int:
    """*bits*, and *bits* shifted by 1 to *times* steps, together."""
    have = 1
    while have <= times:
        more = min(have, times + 1 - have)
        bits |= bits << (more * step)
        have += more
    return bits


def unreachable(choices: Sequence[Sequence[Kind]], batch_size: int) -> str:
    sizes = sorted({kind.node_size for kinds in choices for kind in kinds})
    if not sizes:
        return f"a batch of {batch_size} is smaller than every node size that was profiled"
    bits = 1
    for size in sizes:
        bits |= _spread(bits, size, batch_size // size + 1)
    near = [size for size in range(1, 2 * batch_size) if bits >> size & 1]
    below, above = max((n for n in near if n < batch_size), default=0), min(n for n in near if n > batch_size)
    nearest = f"{below} and {above}" if below else str(above)
    return (
        f"no combination of the profiled node sizes ({', '.join(map(str, sizes))}) adds up to a batch of {batch_size}. "
        f"The nearest that work: {nearest}."
    )
