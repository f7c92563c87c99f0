"""Sums over virtual nodes of the blocks that this worker speaks for; what its own nodes produce is measured and sent.

Once they are divided, the other holders of a block get the finished gradient: until then nobody needs a second copy,
since a step without sums is made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, zip_longest

import torch
from torch import Tensor

from virtualflow.core import faults
from virtualflow.core.blocks import Block
from virtualflow.core.membership import Group
from virtualflow.train.accumulate import Slot, accumulator
from virtualflow.train.hollow import memory_of
from virtualflow.train.readback import Later, Readback
from virtualflow.train.sharded.delivery import Delivery, GradientPiece, bucket_bytes
from virtualflow.train.sharded.gradient_sizes import Magnitudes
from virtualflow.train.sharded.shards import Shards
from virtualflow.train.sharded.square_runs import rows_of
from virtualflow.train.sharded.transfers import Transfer, carry
from virtualflow.train.sums import Sums

_PART = 1024  # elements: the pieces of a block begin at multiples of it
PieceOfBlock = tuple[GradientPiece, Block]


class HeldSums(Sums):
    """As ``Sums``, with memory for the blocks of this worker. Grids and peaks are those of whole tensors."""

    def __init__(self, virtual_nodes: int, shards: Shards) -> None:
        super().__init__(virtual_nodes, exact=True)
        self._shards = shards
        self._home: object = None
        self._magnitudes = Magnitudes()
        self.blocks: list[Block] = []  # of all tensors that take part, in the order of the tree of squares
        self._summed: dict[Block, int] = {}  # where the sums of a block lie, of those that are made here
        self._received: dict[Block, Tensor] = {}  # finished gradients, of those that are made elsewhere
        self._pieces: list[GradientPiece] = []
        self._block_of: list[Block] = []  # for each piece
        self._delivery = Delivery([], None, [0], torch.device("cpu"), self)

    def start(self, group: Group | None, waves: Sequence[int]) -> None:
        """Forget all sums. *waves* has the number of virtual nodes that will run on each rank of *group*."""
        self._unlisted.clear()
        self._unlisted_odd.clear()
        self._magnitudes.clear()
        self._received.clear()
        if self._changed or self._home is not self._shards.holders:
            self._changed, self._home = False, self._shards.holders
            self._divide_up(len(waves))
        self._accumulator.clear()
        self._accumulator.begin_node()
        if not self._shards.is_replicated:
            self._accumulator.complete(range(len(self._summed)))  # a block arrives in parts, from many
        self._delivery = Delivery(self._pieces, group, waves, self._shards.device, self)

    def _divide_up(self, workers: int) -> None:
        listed = [index for index, name in enumerate(self._names) if name in self._grids]
        self._order = listed[::-1]
        self._slot = {index: slot for slot, index in enumerate(self._order)}
        cuts = self._shards.layout.cuts
        pairs = [(index, block) for index in self._order for block in cuts[self._names[index]].blocks]
        self.blocks = [block for _, block in pairs]
        replicated, speakers, rank = self._shards.is_replicated, self._shards.speakers(), self._shards.rank
        mine = [block for block in self.blocks if replicated or speakers[block] == rank]
        self._summed = {block: slot for slot, block in enumerate(mine)}
        self._accumulator = accumulator([])  # first the old memory goes, then the new comes
        self._accumulator = accumulator([self._shards.layout.part(block).detach() for block in mine])
        pieces: list[PieceOfBlock] = []
        for index, together in groupby(pairs, key=lambda pair: pair[0]):
            dtype, most = self._tensors[index].dtype, bucket_bytes(workers)
            pieces += _by_turns(
                [
                    [(piece, b) for piece in _pieces(index, b, dtype, None if replicated else speakers[b], most)]
                    for _, b in together
                ]
            )
        self._pieces, self._block_of = [piece for piece, _ in pieces], [block for _, block in pieces]

    def begin_node(self) -> None:
        self._unlisted_odd.append(None)
        self._magnitudes.begin_node()
        self._delivery.begin_wave()

    def end_node(self) -> None:
        """The virtual node has made all its gradients."""
        self._delivery.end_wave()

    def flush(self) -> None:
        """Have all sums of this worker's blocks be those of all workers."""
        self._delivery.finish()

    def add(self, index: int, value: Tensor, factor: float = 1.0) -> None:
        if index not in self._slot:
            self._measure(index, value, factor)
            return
        slot = Slot.like(self._tensors[index], 0)
        if value.stride() != slot.stride:
            value = torch.empty_strided(slot.shape, slot.stride, dtype=value.dtype, device=value.device).copy_(value)
        vector = value.as_strided((value.numel(),), (1,), value.storage_offset())
        self._magnitudes.note(index, vector, factor)
        self._delivery.ready(index, vector, factor)

    def take(self, piece: int, part: Tensor, factor: float) -> None:
        """Add *part* of a gradient, times *factor*, to the sums."""
        travelled, block = self._pieces[piece], self._block_of[piece]
        slot, constant = self._summed[block], self._grids[block.tensor].constant
        if travelled.owner is None:
            self._accumulator.add(slot, self._accumulator.slots[slot].shaped(part), constant, factor)
        else:
            self._accumulator.add_part(slot, travelled.start - block.start, part, constant, factor)

    def taken(self) -> None:
        """Add what waits: what is added at a time must not meet in one place."""
        self._accumulator.flush()

    def peaks(self, readback: Readback) -> Later[list[int]]:
        listed = self._magnitudes.peaks(readback)

        def peaks() -> list[int]:
            found = {**listed(), **self._unlisted}
            return [found.get(index, -1) for index in range(len(self._tensors))]

        return peaks

    def unclean(self, readback: Readback) -> Later[list[int]]:
        listed = self._magnitudes.odd(readback)

        def unclean() -> list[int]:
            pairs = zip(listed(), self._unlisted_odd, strict=True)
            return [1 + (odd if odd >= 0 or unlisted is None else unlisted) for odd, unlisted in pairs]

        return unclean

    def share(self, group: Group | None) -> bool:
        """Give all holders the finished gradients of their blocks; False if there is one that nobody has any more.

        It was then lost with a worker, and the step has to be made again.
        """
        if group is None:
            return all(self._has(block) for block in self.blocks)
        mine = torch.tensor([self._has(block) for block in self.blocks], dtype=torch.uint8)
        everyone = [torch.empty_like(mine) for _ in range(group.size)]
        group.gather(mine, everyone).wait()
        columns = torch.stack(everyone).t().tolist()
        if not all(map(any, columns)):
            return False
        transfers = [
            Transfer(has.index(1), rank, block.elements * self._result_dtype(block).itemsize, block)
            for block, has in zip(self.blocks, columns, strict=True)
            for rank in self._shards.ranks_of(block)
            if not has[rank]
        ]
        faults.reach("share")
        arrived: dict[Block, Tensor] = {}

        def into(block: Block) -> Tensor:
            arrived[block] = torch.empty(block.elements, dtype=self._result_dtype(block), device=self._shards.device)
            return memory_of(arrived[block])

        carry(transfers, group, self._shards.device, lambda b: memory_of(self.flat_result_of(b)), into)
        self._received |= arrived
        return True

    def _has(self, block: Block) -> bool:
        return block in self._summed or block in self._received

    def _result_dtype(self, block: Block) -> torch.dtype:
        dtype = self._shards.layout.cuts[block.tensor].parameter.dtype
        return torch.float64 if dtype == torch.float64 else torch.float32

    def result_of(self, block: Block) -> Tensor:
        """The finished gradient of a block that is held here."""
        part = self._shards.layout.part(block)
        return Slot.like(part, 0).shaped(self.flat_result_of(block)).to(part.dtype)

    def flat_result_of(self, block: Block) -> Tensor:
        """The same as a vector, in the type in which it is divided."""
        if block in self._summed:
            return self._accumulator.flat_result(self._summed[block])
        return self._received[block]

    def rows(self) -> dict[Block, tuple[int, int]]:
        """The rows of each block in the tree of squares."""
        found, first = {}, 0
        for block in self.blocks:
            found[block] = (first, first + rows_of(block.elements))
            first += rows_of(block.elements)
        return found


def _by_turns(blocks: Sequence[Sequence[PieceOfBlock]]) -> list[PieceOfBlock]:
    """The first piece of each block, then the second, and so on: all who sum them up have something to do."""
    turns = zip_longest(*blocks)
    return [pair for turn in turns for pair in turn if pair is not None]


def _pieces(tensor: int, block: Block, dtype: torch.dtype, owner: int | None, most: int) -> list[GradientPiece]:
    """How *block* travels: in equal pieces of limited size, or as a whole if each sums up its own."""
    count = -(-block.elements * dtype.itemsize // most) if owner is not None else 1
    size = -(-block.elements // max(count, 1) // _PART) * _PART
    starts = range(block.start, max(block.stop, block.start + 1), max(size, _PART))
    return [GradientPiece(tensor, start, min(start + size, block.stop), dtype, owner) for start in starts]
