"""Where one virtual node reads: its shards one after another, pass after pass, in blocks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from virtualflow.core.seeds import derive
from virtualflow.errors import ConfigError
from virtualflow.streams.hints import Hint, Hints, Spot
from virtualflow.streams.resumable import Resumable
from virtualflow.streams.stream import Stream

HINT_EVERY = 256  # examples, where no block says it
MOST_TRIED = 3  # hints, before the shard is read from its start


@dataclass(frozen=True, slots=True)
class ReadContext:
    """What a stream is read with: the job's seed, how generators are set, and how examples are compared."""

    seed: int
    reseed: Callable[[int], None]
    digest_of: Callable[[Any], str]

    def reseed_for(self, *purpose: int | str) -> None:
        """Whatever draws next draws the same, wherever and whenever that is."""
        self.reseed(derive(self.seed, *purpose))


class Cursor:
    """Gives the *n*-th example of one virtual node; the next one, and a few before, without reading anything again."""

    def __init__(self, stream: Stream, node: int, nodes: int, context: ReadContext, hints: Hints) -> None:
        self._stream = stream
        self._node = node
        self._shards = range(node, stream.shards, nodes)
        self._context = context
        self._hints = hints
        self._unit = stream.block or 1
        self._recent: OrderedDict[int, Any] = OrderedDict()  # by n, without gaps
        self._spot: Spot | None = None  # where the open shard goes on
        self._shard: _OpenShard | None = None
        self._empty = 0  # shards in a row that gave nothing
        if stream.counts is not None and not sum(stream.counts[shard] for shard in self._shards):
            raise ConfigError(f"virtual node {node} has no example: its shards {list(self._shards)} have none.")

    def example(self, n: int, keep: int) -> Any:
        """The *n*-th example. Those just before it are kept, for a replay."""
        if n not in self._recent:
            if self._spot is None or not self._spot.n <= n < self._spot.n + self._unit:
                self._go_to(n)
            while self._spot is None or self._spot.n <= n:
                self._read()
        while next(iter(self._recent)) < n - keep:
            self._recent.popitem(last=False)
        return self._recent[n]

    def _go_to(self, n: int) -> None:
        """Stand as near before *n* as one may."""
        if self._spot is not None and n < self._spot.n:
            self._spot = None
        hints = self._hints.known()
        goal = self._spot_of(n)
        for hint in self._useful(hints, n, goal)[:MOST_TRIED]:
            start = hint.spot if goal is None else replace(goal, n=goal.n - goal.at + hint.spot.at, at=hint.spot.at)
            if self._spot is not None and start.n <= self._spot.n:
                return  # what is open is as near
            if self._open(start, hint):
                self._drop_until(goal)
                return
            self._hints.drop(hint)
        if self._spot is None or (goal is not None and goal.n - goal.at > self._spot.n):
            self._open(Spot(0, 0, 0, 0) if goal is None else replace(goal, n=goal.n - goal.at, at=0), None)
            self._drop_until(goal)

    def _useful(self, hints: list[Hint], n: int, goal: Spot | None) -> list[Hint]:
        """Those of *hints* that lead to the *n*-th example, the nearest first."""
        if goal is None:
            return sorted((hint for hint in hints if hint.spot.n <= n), key=lambda hint: -hint.spot.n)
        shard = self._order(goal.number)[goal.turn]
        here = [hint for hint in hints if hint.shard == shard and hint.spot.at <= goal.at and hint.state is not None]
        return sorted(here, key=lambda hint: (-hint.spot.at, hint.spot.number != goal.number))

    def _spot_of(self, n: int) -> Spot | None:
        """Where the block with the *n*-th example begins, if the shards' lengths say so."""
        if self._stream.counts is None:
            return None
        counts = self._stream.counts
        number, within = divmod(n, sum(counts[shard] for shard in self._shards))
        ends = list(accumulate(counts[shard] for shard in self._order(number)))
        turn = next(turn for turn, end in enumerate(ends) if within < end)
        at = within - (ends[turn - 1] if turn else 0)
        return Spot(n - at % self._unit, number, turn, at - at % self._unit)

    def _order(self, number: int) -> Sequence[int]:
        """The node's shards in the order that they have in a pass."""
        if not self._stream.block:
            return self._shards
        return [self._shards[place] for place in self._permutation(len(self._shards), "shards", self._node, number)]

    def _permutation(self, length: int, *purpose: int | str) -> list[int]:
        key = derive(self._context.seed, "stream", *purpose)
        order: list[int] = np.random.Generator(np.random.Philox(key=key)).permutation(length).tolist()
        return order

    def _open(self, start: Spot, hint: Hint | None) -> bool:
        """Open the shard at *start*; whether what comes there is what *hint* says."""
        if self._spot != start:
            self._recent.clear()
        self._spot, self._shard = None, None
        number = self._order(start.number)[start.turn]
        try:
            shard = _OpenShard(self._stream, number, start, hint, self._context)
        except Exception:
            if hint is not None and hint.state is not None:
                return False  # the state of something else
            raise
        if hint is not None and shard.peek() != hint.next_digest:
            return False
        self._spot, self._shard = start, shard
        return True

    def _drop_until(self, goal: Spot | None) -> None:
        if goal is not None and self._spot is not None and self._shard is not None:
            for _ in range(goal.at - self._spot.at):
                self._shard.next()
            self._spot = goal

    def _read(self) -> None:
        """Read one block, or one example of a stream that is not shuffled."""
        spot = self._spot or Spot(0, 0, 0, 0)
        if self._shard is None:
            self._open(spot, None)
        assert self._shard is not None
        shard, most = self._shard, self._unit
        if (counts := self._stream.counts) is not None:
            most = min(most, counts[shard.number] - spot.at)
        is_marked = spot.at % (self._stream.block or HINT_EVERY) == 0
        state = shard.state() if is_marked else None
        self._spot = self._shard = None  # until it is read: an iterator that has raised an error is at its end
        block: list[Any] = []
        while len(block) < most and not shard.ended:
            block += shard.next()
        if is_marked and block and (state is not None or counts is None):
            self._hints.add(spot, shard.number, state, self._context.digest_of(block[0]))
        if self._stream.block:
            purpose = ("block", shard.number, spot.number, spot.at // self._stream.block)
            block = [block[place] for place in self._permutation(len(block), *purpose)]
        self._recent.update(enumerate(block, spot.n))
        self._advance(spot, len(block), shard)

    def _advance(self, spot: Spot, read: int, shard: _OpenShard) -> None:
        counts = self._stream.counts
        at = spot.at + read
        if counts is not None and shard.ended and at < counts[shard.number]:
            raise ConfigError(
                f"shard {shard.number} ends after {shard.at} examples, but examples= says {counts[shard.number]}. "
                "Correct that, or let the stream count by itself: stream.counted()."
            )
        self._empty = 0 if at else self._empty + 1
        if self._empty >= len(self._shards):
            raise ConfigError(f"virtual node {self._node} has no example: its shards {list(self._shards)} have none.")
        if shard.ended or (counts is not None and at == counts[shard.number]):
            number, turn = divmod(spot.number * len(self._shards) + spot.turn + 1, len(self._shards))
            self._spot, self._shard = Spot(spot.n + read, number, turn, 0), None
        else:
            self._spot, self._shard = replace(spot, n=spot.n + read, at=at), shard


class _OpenShard:
    """One shard in one pass, opened at a place in it."""

    def __init__(self, stream: Stream, number: int, start: Spot, hint: Hint | None, context: ReadContext) -> None:
        self.number = number
        self.ended = False
        self._context = context
        self._pass = start.number
        self._held: list[Any] = []
        self._draws = stream.draws
        self.at = 0
        state = None if hint is None else hint.state
        self._examples = Resumable(stream.open_shard(number), state)
        if state is not None:
            self.at = start.at
        while self.at < start.at and not self.ended:
            self.next()

    def state(self) -> Any:
        """Where the iterable says it is; None if it can't say so, or is further than what was handed out."""
        return None if self._held else self._examples.state()

    def peek(self) -> str:
        """The digest of the example that comes next, empty at the end."""
        self._held = self.next()
        self.at -= len(self._held)
        self.ended = False
        return self._context.digest_of(self._held[0]) if self._held else ""

    def next(self) -> list[Any]:
        """The next example, or none at the end of the shard."""
        if self._held:
            self.at += 1
            return [self._held.pop()]
        # What an iterable draws must not depend on where it was opened.
        if self._draws:
            self._context.reseed_for("read", self.number, self._pass, self.at)
        for example in self._examples:
            self.at += 1
            return [example]
        self.ended = True
        return []
