"""Which batches a set of devices can process in a given time, if every type may choose its node size.

The batches are a set of whole numbers, kept as the bits of one large integer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from virtualflow.solver.node_shares import SLACK, DeviceGroup, Share, evenly

MOST_WORK = 3e8  # array elements touched while looking for the fewest devices; beyond, few is good enough


class Batches:
    """The batches that *counts* devices of each pool can process within a limit."""

    def __init__(self, choices: Sequence[Sequence[DeviceGroup]], counts: Sequence[int], batch_size: int) -> None:
        self._choices = [(groups, count) for groups, count in zip(choices, counts, strict=True) if groups and count]
        # Fast ones last: the way back from the batch begins with them, so that slow ones stay unused if they can.
        self._choices.sort(key=lambda entry: -min(group.seconds / group.node_size for group in entry[0]))
        self._batch_size = batch_size

    def could_meet(self, limit: float) -> bool:
        """Whether the examples would be enough, if any number of them could be had."""
        room = 0
        for groups, count in self._choices:
            room += max(self._nodes(group, count, limit) * group.node_size for group in groups)
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
                group.time(nodes)
                for groups, _ in self._choices
                for group in groups
                for nodes in range(max(1, group.fits(low)), group.fits(high) + 1)
                if low <= group.time(nodes) <= high
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
        return max(group.time(self._batch_size) for groups, _ in self._choices for group in groups)

    def _nodes(self, group: DeviceGroup, count: int, limit: float) -> int:
        if math.isinf(limit):
            return self._batch_size // group.node_size
        return min(count * group.fits(limit), self._batch_size // group.node_size)

    def _reached(self, limit: float) -> list[int]:
        """After each pool, the batches that can be made, as bits."""
        mask = (1 << (self._batch_size + 1)) - 1
        reached = [1]
        for groups, count in self._choices:
            bits = reached[-1]
            for group in groups:
                bits |= _spread(reached[-1], group.node_size, self._nodes(group, count, limit)) & mask
            reached.append(bits)
        return reached

    def shares(self, limit: float) -> list[Share]:
        """A plan within *limit* that meets the batch with as few devices as possible."""
        work = sum(
            self._nodes(group, count, limit) * self._batch_size for groups, count in self._choices for group in groups
        )
        steps = self._fewest(limit) if work <= MOST_WORK else self._any(limit)
        shares = []
        for group, nodes in steps:
            shares += evenly(group, math.ceil(nodes / group.fits(limit)), nodes)
        return shares

    def _any(self, limit: float) -> list[tuple[DeviceGroup, int]]:
        reached, left, steps = self._reached(limit), self._batch_size, []
        for place in range(len(self._choices) - 1, -1, -1):
            groups, count = self._choices[place]
            options = (
                (nodes * group.node_size, group, nodes)
                for group in groups
                for nodes in range(min(self._nodes(group, count, limit), left // group.node_size), -1, -1)
                if reached[place] >> (left - nodes * group.node_size) & 1
            )
            examples, group, nodes = max(options, key=lambda option: option[0])
            left -= examples
            if nodes:
                steps.append((group, nodes))
        return steps

    def _fewest(self, limit: float) -> list[tuple[DeviceGroup, int]]:
        """By how many devices each batch takes at least, pool after pool."""
        never = np.iinfo(np.int64).max // 2
        costs = np.full(self._batch_size + 1, never, dtype=np.int64)
        costs[0] = 0
        history = []
        for groups, count in self._choices:
            new, choice = costs.copy(), np.full((self._batch_size + 1, 2), -1, dtype=np.int64)
            for number, group in enumerate(groups):
                for nodes in range(1, self._nodes(group, count, limit) + 1):
                    shift = nodes * group.node_size
                    taken = costs[: self._batch_size + 1 - shift] + math.ceil(nodes / group.fits(limit))
                    better = np.nonzero(taken < new[shift:])[0] + shift
                    new[better] = taken[better - shift]
                    choice[better] = (number, nodes)
            costs = new
            history.append((groups, choice))
        steps, left = [], self._batch_size
        for groups, choice in reversed(history):
            number, nodes = (int(text) for text in choice[left])
            if number >= 0:
                steps.append((groups[number], nodes))
                left -= nodes * groups[number].node_size
        return steps


def _spread(bits: int, step: int, times: int) -> int:
    """*bits*, and *bits* shifted by 1 to *times* steps, together."""
    have = 1
    while have <= times:
        more = min(have, times + 1 - have)
        bits |= bits << (more * step)
        have += more
    return bits


def unreachable(choices: Sequence[Sequence[DeviceGroup]], batch_size: int) -> str:
    sizes = sorted({group.node_size for groups in choices for group in groups})
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
