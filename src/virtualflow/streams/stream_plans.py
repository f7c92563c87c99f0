"""What each step of a job over a stream works on: cursors that follow from the step, and are kept nowhere."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from virtualflow.core.sharding import GlobalBatch, Indices
from virtualflow.streams.stream import Stream


class StreamEpoch:
    """One pass over a stream whose shards say how many examples they have: each of them exactly once.

    A virtual node whose shards have fewer than those of others has empty shards at the end.
    """

    def __init__(
        self, number: int, stream: Stream, counts: Sequence[int], sizes: Sequence[int], *, drop_last: bool = False
    ) -> None:
        self.number = number
        self._sizes = sizes
        self._examples = [sum(counts[node :: len(sizes)]) for node in range(len(sizes))]
        self._order_id = identity(stream, len(sizes))
        if drop_last:
            self.steps = min(have // size for have, size in zip(self._examples, sizes, strict=True))
        else:
            self.steps = max(-(-have // size) for have, size in zip(self._examples, sizes, strict=True))

    def batch(self, step: int) -> GlobalBatch:
        """The global batch of *step*."""
        shards = []
        for node, (have, size) in enumerate(zip(self._examples, self._sizes, strict=True)):
            first, before = min(step * size, have), self.number * have
            shards.append(_indices(before + first, before + min(first + size, have), node, len(self._sizes)))
        return GlobalBatch(self.number, step, tuple(shards), self._order_id)


class StreamSteps:
    """A number of steps over a stream: each virtual node passes over its own shards again and again."""

    number = 0

    def __init__(self, steps: int, stream: Stream, sizes: Sequence[int]) -> None:
        self.steps = steps
        self._sizes = sizes
        self._order_id = identity(stream, len(sizes))

    def batch(self, step: int) -> GlobalBatch:
        """The global batch of *step*."""
        shards = [
            _indices(step * size, (step + 1) * size, node, len(self._sizes)) for node, size in enumerate(self._sizes)
        ]
        return GlobalBatch(0, step, tuple(shards), self._order_id)


def _indices(first: int, end: int, node: int, nodes: int) -> Indices:
    """Those of a node's examples from *first* to before *end*: what a StreamReader takes apart again."""
    return np.arange(first, end, dtype=np.int64) * nodes + node


def identity(stream: Stream, nodes: int) -> int:
    """Stands for what is known of *stream* without opening it: a worker that has another one is found by it."""
    return zlib.crc32(repr((stream.shards, stream.block, stream.counts, nodes)).encode())
