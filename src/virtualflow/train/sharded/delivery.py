"""Gradients on their way to the worker that sums up their block, while backward still makes the next ones.

In a wave, buckets go in the same order on all workers: whoever has no virtual node left, or whose node made no
gradient, takes part all the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from virtualflow.core import faults
from virtualflow.core.membership import Group, Work

MOST_UNDER_WAY = 2  # buckets
MOST_BYTES = 8 * 2**20  # that arrive on a worker at a time, however many others there are
LEAST_BYTES = 64 * 2**10  # of a bucket
_ALIGNED = 16  # bytes


@dataclass(frozen=True, slots=True)
class GradientPiece:
    """A part of a tensor, and the rank that sums it up; None if each sums up its own virtual nodes' first."""

    tensor: int
    start: int
    stop: int
    dtype: torch.dtype
    owner: int | None

    @property
    def length(self) -> int:
        return (self.stop - self.start) * self.dtype.itemsize

    @property
    def space(self) -> int:
        return -(-self.length // _ALIGNED) * _ALIGNED


def bucket_bytes(workers: int) -> int:
    """How much of a bucket is for one worker: the more may send it some at a time, the less."""
    return max(LEAST_BYTES, MOST_BYTES // (MOST_UNDER_WAY * max(workers - 1, 1)))


def buckets_of(pieces: Sequence[GradientPiece], most: int) -> list[range]:
    """Consecutive *pieces* in buckets of *most* bytes for each worker.

    A large tensor ends a bucket: its gradient is then gone.
    """
    buckets: list[range] = []
    start = of_tensor = 0
    filled: Counter[int | None] = Counter()
    for place, piece in enumerate(pieces):
        is_new = place == 0 or pieces[place - 1].tensor != piece.tensor
        is_full = filled[piece.owner] + piece.length > most
        if place > start and (is_full or (is_new and of_tensor >= most)):
            buckets.append(range(start, place))
            start = place
            filled.clear()
        filled[piece.owner] += piece.length
        of_tensor = piece.length if is_new else of_tensor + piece.length
    return [*buckets, range(start, len(pieces))] if pieces else []


@dataclass(frozen=True, slots=True)
class Bucketful:
    """A bucket under way, and where it arrives."""

    work: Work
    bucket: int
    wave: int
    incoming: Tensor
    sources: list[int]


class Summing(Protocol):
    """Where gradients go. Pieces are known by their places."""

    def take(self, piece: int, part: Tensor, factor: float) -> None:
        """Add *part*, times *factor*, to the sums of *piece*."""

    def taken(self) -> None:
        """One worker's pieces of a bucket were all taken: their memory may go, and another's may come."""

    def complete(self, pieces: range) -> Tensor:
        """The sums of *pieces* over this worker's virtual nodes, if each sums up its own."""


class Delivery:
    """Brings the gradients of an attempt at a step to those who sum them up; ``waves[r]`` nodes run on rank r."""

    def __init__(
        self,
        pieces: Sequence[GradientPiece],
        group: Group | None,
        waves: Sequence[int],
        device: torch.device,
        sums: Summing,
    ) -> None:
        self._pieces = pieces
        self._group = group
        self._rank = group.rank if group is not None else 0
        self._waves = waves
        self._device = device
        self._sums = sums
        self._is_replicated = any(piece.owner is None for piece in pieces)
        self._reduced: list[Work] = []
        self._buckets = buckets_of(pieces, bucket_bytes(len(waves)))
        self._bucket_of = [number for number, bucket in enumerate(self._buckets) for _ in bucket]
        self._places: dict[int, list[int]] = {}
        for place, piece in enumerate(pieces):
            self._places.setdefault(piece.tensor, []).append(place)
        # Of each bucket, which pieces each rank sums up.
        self._owned: list[dict[int | None, list[int]]] = [defaultdict(list) for _ in self._buckets]
        for place, piece in enumerate(pieces):
            self._owned[self._bucket_of[place]][piece.owner].append(place)
        self._wave = -1
        self._next = len(self._buckets)
        self._missing: list[int] = []  # of each bucket, how many pieces this wave has still to make
        self._values: dict[int, Tensor] = {}
        self._factor = 1.0
        self._factors: list[tuple[Work, list[Tensor]]] = []  # for each wave those of all ranks
        self._under_way: deque[Bucketful] = deque()
        self._memories: list[tuple[Tensor, Tensor]] = []  # of buckets under way, in the order in which they are used

    def begin_wave(self) -> None:
        """The next virtual node of this worker begins."""
        self._wave += 1
        self._next = 0
        self._missing = [len(bucket) for bucket in self._buckets]
        self._values.clear()

    def ready(self, tensor: int, value: Tensor, factor: float) -> None:
        """The node's gradient of *tensor*, as a vector; times *factor*, which is the same for all of a node."""
        self._values[tensor] = value
        self._factor = factor
        for place in self._places[tensor]:
            self._missing[self._bucket_of[place]] -= 1
        while self._next < len(self._buckets) and self._missing[self._next] == 0:
            self._send()

    def end_wave(self) -> None:
        """The node has made all gradients that it makes."""
        while self._next < len(self._buckets):
            self._send()
        self._values.clear()

    def finish(self) -> None:
        """Take part in the waves of the others, and have everything summed that is for this worker."""
        self.end_wave()  # of a node that has failed: it sends zeros, since the others wait
        waves = self._waves[self._rank] if self._is_replicated else max(self._waves, default=0)
        while self._wave + 1 < waves:
            self.begin_wave()
            self.end_wave()
        while self._under_way:
            self._receive()
        self._memories.clear()
        if self._is_replicated and not self._waves[self._rank]:
            for bucket in self._buckets:
                self._reduce(bucket)
        for work in self._reduced:
            work.wait()
        self._reduced.clear()  # they hold the memory of the sums

    def _send(self) -> None:
        bucket, number = self._buckets[self._next], self._next
        self._next += 1
        is_mine = self._wave < self._waves[self._rank]
        if is_mine:
            for place in bucket:
                piece = self._pieces[place]
                if piece.owner in (None, self._rank) and piece.tensor in self._values:
                    self._sums.take(place, self._part(place), self._factor)
            self._sums.taken()
        if self._is_replicated:
            if self._wave == self._waves[self._rank] - 1:
                self._reduce(bucket)
        elif self._group is not None:
            while len(self._under_way) >= MOST_UNDER_WAY:  # the next one needs the oldest one's memory
                self._receive()
            self._exchange(number, is_mine)
        for place in bucket:  # the last piece of a tensor has been sent: its gradient is needed no more
            if place == self._places[self._pieces[place].tensor][-1]:
                self._values.pop(self._pieces[place].tensor, None)

    def _reduce(self, bucket: range) -> None:
        if self._group is not None:
            self._reduced.append(self._group.sum(self._sums.complete(bucket)))
            faults.reach("bucket")

    def _exchange(self, number: int, is_mine: bool) -> None:
        assert self._group is not None
        if number == 0:  # by way of the hosts: to read one of a device would be to wait for it
            factors = [torch.empty(1, dtype=torch.float64) for _ in range(self._group.size)]
            mine = torch.tensor([self._factor], dtype=torch.float64)
            self._factors.append((self._group.gather(mine, factors), factors))
        ranks = range(self._group.size)
        to = [self._length(number, rank) if is_mine and rank != self._rank else 0 for rank in ranks]
        sources = [rank for rank in ranks if rank != self._rank and self._wave < self._waves[rank]]
        length = self._length(number, self._rank)
        of = [length if rank in sources else 0 for rank in ranks]
        incoming, outgoing = (memory[:n] for memory, n in zip(self._memory(), (sum(of), sum(to)), strict=True))
        start = 0
        for rank, n in enumerate(to):
            if n:
                self._pack(number, rank, outgoing[start : start + n])
                start += n
        work = self._group.exchange(outgoing, to, incoming, of)
        self._under_way.append(Bucketful(work, number, self._wave, incoming, sources if length else []))
        faults.reach("bucket")

    def _memory(self) -> tuple[Tensor, Tensor]:
        """Memory for what arrives in a bucket, and for what leaves: of the bucket that was received last, if any."""
        if not self._memories:
            self._memories = [self._new_memory() for _ in range(MOST_UNDER_WAY)]
        self._memories.append(self._memories.pop(0))
        return self._memories[-1]

    def _new_memory(self) -> tuple[Tensor, Tensor]:
        others = [rank for rank in range(len(self._waves)) if rank != self._rank]
        numbers = range(len(self._buckets))
        arriving = max((self._length(number, self._rank) for number in numbers), default=0) * len(others)
        leaving = max((sum(self._length(number, rank) for rank in others) for number in numbers), default=0)
        incoming = torch.empty(arriving, dtype=torch.uint8, device=self._device)
        return incoming, torch.empty(leaving, dtype=torch.uint8, device=self._device)

    def _pack(self, number: int, rank: int, message: Tensor) -> None:
        start = 0
        for place in self._owned_by(number, rank):
            piece = self._pieces[place]
            target = message[start : start + piece.length].view(piece.dtype)
            if piece.tensor in self._values:
                target.copy_(self._part(place))
            else:
                target.zero_()  # adds nothing
            start += piece.space

    def _receive(self) -> None:
        message = self._under_way.popleft()
        message.work.wait()
        work, factors = self._factors[message.wave]
        if message.bucket == 0:
            work.wait()
        length = self._length(message.bucket, self._rank)
        for turn, source in enumerate(message.sources):
            data = message.incoming[turn * length : (turn + 1) * length]
            start = 0
            for place in self._owned_by(message.bucket, self._rank):
                piece = self._pieces[place]
                part = data[start : start + piece.length].view(piece.dtype)
                self._sums.take(place, part, float(factors[source]))
                start += piece.space
            self._sums.taken()

    def _part(self, place: int) -> Tensor:
        piece = self._pieces[place]
        return self._values[piece.tensor][piece.start : piece.stop]

    def _owned_by(self, number: int, rank: int) -> Sequence[int]:
        return self._owned[number].get(rank, ())

    def _length(self, number: int, rank: int) -> int:
        return sum(self._pieces[place].space for place in self._owned_by(number, rank))
