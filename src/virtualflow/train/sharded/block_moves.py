"""The state of blocks on its way between workers: to those who are to hold it, or to the lead, who writes it down."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from virtualflow.core import faults
from virtualflow.core.blocks import Block
from virtualflow.core.membership import Group
from virtualflow.errors import StateLostError
from virtualflow.train.hollow import filled, hollow, memory_of
from virtualflow.train.packed_values import gather_packed, unpacked
from virtualflow.train.sharded.block_layout import TensorCut
from virtualflow.train.sharded.cut_state import OptimizerState, assembled, empty_on_host
from virtualflow.train.sharded.transfers import Transfer, carry

Held = dict[Block, OptimizerState]


class BlockMoves:
    """What the workers of *group* hold of *blocks*, as they have told each other, and ways to send it."""

    def __init__(self, blocks: Sequence[Block], held: Held, group: Group, device: torch.device) -> None:
        self._blocks = blocks
        self._held = held
        self._group = group
        self._device = device
        mine = torch.tensor([block in held for block in blocks], dtype=torch.uint8)
        everyone = [torch.empty_like(mine) for _ in range(group.size)]
        group.gather(mine, everyone).wait()
        columns = torch.stack(everyone).t().tolist()
        self._have = [[rank for rank, has in enumerate(column) if has] for column in columns]
        check_nothing_lost(blocks, self._have)

    def shared_out(self) -> list[int]:
        """For each block the rank of one that holds it; all have about as many."""
        return [have[number % len(have)] for number, have in enumerate(self._have)]

    def fetch(self, wanted: Mapping[Block, Iterable[int]]) -> Held:
        """What this worker lacks of *wanted*, which says for each block the ranks that are to hold it."""
        moving: list[tuple[int, int, int]] = []
        for number, block in enumerate(self._blocks):
            have = self._have[number]
            lacking = [rank for rank in wanted[block] if rank not in have]
            moving += [(number, have[(number + place) % len(have)], rank) for place, rank in enumerate(lacking)]
        sent = sorted({number for number, source, _ in moving if source == self._group.rank})
        described = self._described([self._blocks[number] for number in sent])
        arrived: Held = {}
        memories: dict[Block, list[Tensor]] = {}
        for number, _, target in moving:
            if target == self._group.rank:
                block = self._blocks[number]
                arrived[block] = filled(described[number][1], memories.setdefault(block, []), self._device)
        transfers = [
            Transfer(source, target, length, (self._blocks[number], place))
            for number, source, target in moving
            for place, length in enumerate(described[number][0])
        ]
        faults.reach("move state")
        carry(transfers, self._group, self._device, self._read, lambda what: memory_of(memories[what[0]][what[1]]))
        return arrived

    def collect(self, cuts: Iterable[TensorCut]) -> Iterator[OptimizerState]:
        """The state of whole parameters, one after another, on the lead; the others send, and get nothing."""
        numbers = {block: number for number, block in enumerate(self._blocks)}
        lead = self._group.rank == 0
        shared_out = self.shared_out()
        sources = [0 if 0 in have else rank for have, rank in zip(self._have, shared_out, strict=True)]
        mine = [block for block, source in zip(self._blocks, sources, strict=True) if 0 != source == self._group.rank]
        described = self._described(mine)
        for cut in cuts:
            arrived: Held = {}
            memories: dict[Block, list[Tensor]] = {}
            transfers = []
            for block in cut.blocks:
                number = numbers[block]
                if sources[number] != 0:
                    lengths, plain = described[number]
                    transfers += [Transfer(sources[number], 0, n, (block, place)) for place, n in enumerate(lengths)]
                    if lead:
                        arrived[block] = filled(plain, memories.setdefault(block, []), self._device)
            carry(transfers, self._group, self._device, self._read, lambda what: memory_of(memories[what[0]][what[1]]))  # noqa: B023  (called at once)
            pieces = [(block, arrived.get(block, self._held.get(block, {}))) for block in cut.blocks] if lead else []
            yield assembled(cut.parameter, pieces, empty_on_host) if pieces else {}

    def _described(self, mine: Sequence[Block]) -> dict[int, tuple[list[int], OptimizerState]]:
        """For each block that some worker is to send, its tensors' lengths in bytes and its form."""
        numbers = {block: number for number, block in enumerate(self._blocks)}
        forms = {}
        for block in mine:
            tensors: list[Tensor] = []
            plain = hollow(self._held[block], tensors)
            forms[numbers[block]] = ([tensor.nbytes for tensor in tensors], plain)
        everyone = unpacked(gather_packed(forms, self._group))
        return {number: form for theirs in everyone for number, form in theirs.items()}

    def _read(self, what: tuple[Block, int]) -> Tensor:
        tensors: list[Tensor] = []
        hollow(self._held[what[0]], tensors)
        return memory_of(tensors[what[1]])


def check_nothing_lost(blocks: Sequence[Block], have: Sequence[Sequence[object]]) -> None:
    """Raise StateLostError if there is a block that nobody has any more."""
    if lost := [block.tensor for block, holders in zip(blocks, have, strict=True) if not holders]:
        raise StateLostError(
            f"more workers were lost at once than copies= of the optimizer's state allow for: nobody holds that of "
            f"{lost[0]!r} any more, nor of {len(lost) - 1} other blocks. `vf run --resume` continues from the last "
            "checkpoint, or from the beginning if none was written yet."
        )
