"""Sums over virtual nodes of the blocks that this worker holds; what its own nodes produce is measured and sent."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from virtualflow.core.blocks import Block
from virtualflow.core.membership import Group
from virtualflow.train.accumulate import Slot, accumulator
from virtualflow.train.readback import Later, Readback
from virtualflow.train.scalars import float_bits
from virtualflow.train.sharded.delivery import Delivery, GradientPiece
from virtualflow.train.sharded.shards import Shards
from virtualflow.train.sharded.square_runs import rows_of
from virtualflow.train.sums import Sums


class HeldSums(Sums):
    """As ``Sums``, with memory for the blocks that are held here. Grids and peaks are those of whole tensors."""

    def __init__(self, virtual_nodes: int, shards: Shards) -> None:
        super().__init__(virtual_nodes, exact=True)
        self._shards = shards
        self._home: object = None
        self.blocks: list[Block] = []  # of all tensors that take part, in the order of the tree of squares
        self._held: dict[Block, int] = {}  # where the sums of a block lie
        self._pieces: list[GradientPiece] = []
        self._delivery = Delivery([], None, [0], torch.device("cpu"), self._take, self.complete)

    def start(self, group: Group | None, waves: Sequence[int]) -> None:
        """Forget all sums. So many virtual nodes will run on each rank of *group*."""
        self._unlisted.clear()
        self._unlisted_odd.clear()
        self._peaks: dict[int, int] = {}
        self._odd: list[set[int]] = []
        if self._changed or self._home is not self._shards.holders:
            self._changed, self._home = False, self._shards.holders
            self._divide_up()
        self._accumulator.clear()
        self._accumulator.begin_node()
        self._delivery = Delivery(self._pieces, group, waves, self._shards.device, self._take, self.complete)

    def _divide_up(self) -> None:
        listed = [index for index, name in enumerate(self._names) if name in self._grids]
        self._order = listed[::-1]
        self._slot = {index: slot for slot, index in enumerate(self._order)}
        cuts = self._shards.layout.cuts
        pairs = [(index, block) for index in self._order for block in cuts[self._names[index]].blocks]
        self.blocks = [block for _, block in pairs]
        mine = [block for block in self.blocks if block in self._shards.held]
        self._held = {block: place for place, block in enumerate(mine)}
        self._accumulator = accumulator([])  # first the old memory goes, then the new comes
        self._accumulator = accumulator([self._shards.layout.part(block).detach() for block in mine])
        self._pieces = [
            GradientPiece(i, b.start, b.stop, self._tensors[i].dtype, tuple(self._shards.ranks_of(b))) for i, b in pairs
        ]

    def begin_node(self) -> None:
        self._unlisted_odd.append(None)
        self._odd.append(set())
        self._delivery.begin_wave()

    def end_node(self) -> None:
        """The virtual node has made all its gradients."""
        self._delivery.end_wave()

    def flush(self) -> None:
        """Have all sums that this worker holds be those of all workers."""
        self._delivery.finish()

    def add(self, index: int, value: Tensor, factor: float = 1.0) -> None:
        if index not in self._slot:
            self._measure(index, value, factor)
            return
        peak = float(torch.linalg.vector_norm(value, math.inf)) * factor if value.numel() else 0.0
        if not math.isfinite(peak):
            self._odd[-1].add(index)
            finite = value.detach()[value.isfinite()]
            peak = float(finite.abs().max()) * factor if finite.numel() else 0.0
        self._peaks[index] = max(self._peaks.get(index, -1), float_bits(peak))
        slot = Slot.like(self._tensors[index], 0)
        if value.stride() != slot.stride:
            value = torch.empty_strided(slot.shape, slot.stride, dtype=value.dtype, device=value.device).copy_(value)
        vector = value.as_strided((value.numel(),), (1,), value.storage_offset())
        self._delivery.ready(index, vector, factor)

    def _take(self, place: int, part: Tensor, factor: float) -> None:
        slot = self._held[self.blocks[place]]
        constant = self._grids[self._names[self._pieces[place].tensor]].constant
        self._accumulator.add(slot, self._accumulator.slots[slot].shaped(part), constant, factor)

    def peaks(self, readback: Readback) -> Later[list[int]]:
        found = {**self._peaks, **self._unlisted}
        return lambda: [found.get(index, -1) for index in range(len(self._tensors))]

    def unclean(self, readback: Readback) -> Later[list[int]]:
        found = [
            1 + (max(odd) if odd else unlisted if unlisted is not None else -1)
            for odd, unlisted in zip(self._odd, self._unlisted_odd, strict=True)
        ]
        return lambda: found

    def result_of(self, block: Block) -> Tensor:
        """What ``divide`` has made of the sum of a block that is held here."""
        return self._accumulator.result(self._held[block])

    def flat_result_of(self, block: Block) -> Tensor:
        """The same as a vector."""
        return self._accumulator.flat_result(self._held[block])

    def rows(self) -> dict[Block, tuple[int, int]]:
        """The rows of each block in the tree of squares."""
        found, first = {}, 0
        for block in self.blocks:
            found[block] = (first, first + rows_of(block.elements))
            first += rows_of(block.elements)
        return found
