"""The exact reduction where each worker sums up the blocks that it holds: the same bits, in a part of the memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby

import torch
from torch import Tensor, nn

from virtualflow.core import faults
from virtualflow.core.membership import Group
from virtualflow.train.buffers import Buffers
from virtualflow.train.peers import Peers
from virtualflow.train.readback import Later, Readback
from virtualflow.train.reduction import Measured, Reduction, SumsLost
from virtualflow.train.scalars import bits_float, float_bits
from virtualflow.train.sharded.held_sums import HeldSums
from virtualflow.train.sharded.shards import Shards
from virtualflow.train.sharded.square_runs import Branch, branches, joined, squares_of, total
from virtualflow.train.square_tree import LANES
from virtualflow.train.sums import in_range

ROWS_AT_ONCE = 64  # of squares, which bounds the memory that they take
_LOST = -1  # in place of the bits of a sum, which is not negative


class ShardedReduction(Reduction):
    """The same bits for any mapping, and for any way to divide the blocks."""

    normalises = False
    is_sharded = True

    def __init__(
        self, parameters: dict[str, nn.Parameter], buffers: Buffers, virtual_nodes: int, shards: Shards, peers: Peers
    ) -> None:
        self._shards = shards
        self._peers = peers
        self.gradient_sums = HeldSums(virtual_nodes, shards)
        super().__init__(parameters, buffers, virtual_nodes)

    def begin(self, group: Group | None, waves: Sequence[int] = ()) -> None:
        super().begin(group, waves)
        self._shards.gradients = {}
        self.gradient_sums.start(group, waves)

    def begin_node(self, *, last: bool) -> None:
        super().begin_node(last=last)
        self.gradient_sums.begin_node()

    def end_node(self, examples: int) -> None:
        self.gradient_sums.end_node()
        super().end_node(examples)

    @property
    def grids(self) -> dict[str, dict[str, int]]:
        return {"buffers": self.buffer_sums.grids, "gradients": self.gradient_sums.grids_by_name()}

    @grids.setter
    def grids(self, exponents: dict[str, dict[str, int]]) -> None:
        self.buffer_sums.grids = exponents.get("buffers", {})
        self.gradient_sums.set_grids(exponents.get("gradients", {}))

    def _adopted(self, parameters: dict[str, nn.Parameter]) -> None:
        self.gradient_sums.adopt(parameters)

    def _take(self, index: int, gradient: Tensor) -> None:
        self.parameters[index].grad = None
        self.gradient_sums.add(index, gradient, self._factor)

    def _flush_gradients(self) -> None:
        self.gradient_sums.flush()

    def measure(self, readback: Readback) -> Later[Measured]:
        gradients, buffers = self.gradient_sums.peaks(readback), self.buffer_sums.peaks(readback)
        unclean = self.gradient_sums.unclean(readback)
        return lambda: Measured(gradients() + buffers(), unclean())

    def divide(self, weight: float) -> Tensor:
        if self._shards.is_replicated:  # whoever has the scalars knows that all hold all sums
            squares = self.gradient_sums.divide(weight, squares=True)
            assert squares is not None
            return squares
        self.gradient_sums.divide(weight)
        return torch.tensor(self._squares(lambda values: values, shared=False), dtype=torch.float64)

    def norm(self, squares: float) -> float:
        if self._shards.is_replicated:
            return self.gradient_sums.norm(squares)
        if in_range(squares):
            return math.sqrt(squares)
        peak = self._peak()
        if not 0.0 < peak < math.inf:
            return peak
        exponent = math.frexp(peak)[1]
        scaled = self._squares(lambda v: torch.ldexp(v.double(), torch.tensor(-exponent, device=v.device)), shared=True)
        try:
            return math.ldexp(math.sqrt(scaled), exponent)
        except OverflowError:
            return math.inf

    def _squares(self, scale: Callable[[Tensor], Tensor], *, shared: bool) -> float:
        """The sum of the squares of all results, each scaled. Whoever has it knows that all holders have theirs."""

        def attempt() -> Tensor:
            self._peers.announce("squares").check()
            if not shared and not self.gradient_sums.share(self._peers.group):
                return torch.tensor([_LOST])
            faults.reach("squares")
            parts = self._branches(scale)
            return torch.tensor([float_bits(total(parts))])

        bits = int(self._peers.agree(attempt))
        if bits == _LOST:
            raise SumsLost
        return bits_float(bits)

    def _branches(self, scale: Callable[[Tensor], Tensor]) -> list[tuple[Branch, Tensor]]:
        """The branches of all runs of blocks; each run is of one worker's blocks, who sends its branches to all."""
        group, sums = self._peers.group, self.gradient_sums
        rows, speakers = sums.rows(), self._shards.speakers()
        places: list[Branch] = []
        mine: list[tuple[int, Tensor]] = []
        for speaker, run in groupby(sums.blocks, key=lambda block: speakers[block]):
            together = list(run)
            first = len(places)
            places += branches(rows[together[0]][0], rows[together[-1]][1])
            if speaker == self._shards.rank:
                parts = (
                    part
                    for block in together
                    for number, values in enumerate(sums.flat_result_of(block).split(ROWS_AT_ONCE * LANES))
                    for part in squares_of(rows[block][0] + number * ROWS_AT_ONCE, scale(values))
                )
                mine += [(first + place, lanes) for place, (_, lanes) in enumerate(joined(parts))]
        everything = torch.zeros(len(places), LANES, dtype=torch.float64)
        if mine:
            everything[[place for place, _ in mine]] = torch.stack([lanes for _, lanes in mine]).cpu()
        if group is not None and places:
            group.sum(everything).wait()  # one of the addends is not zero
        return list(zip(places, everything, strict=True))

    def _peak(self) -> float:
        """The largest magnitude of a result, over all blocks; not a number if one is not."""

        def attempt() -> Tensor:
            self._peers.announce("squares").check()
            mine = [self.gradient_sums.flat_result_of(b) for b in self.gradient_sums.blocks if b in self._shards.held]
            peaks = [float(result.double().abs().max()) for result in mine if len(result)]
            peak = math.nan if any(map(math.isnan, peaks)) else max(peaks, default=0.0)
            bits = torch.tensor([float_bits(abs(peak))])  # of numbers that are not negative: in their order, NaN last
            if self._peers.group is not None:
                self._peers.group.max(bits).wait()
            return bits

        return bits_float(int(self._peers.agree(attempt)))

    def _accept_gradients(self, peaks: list[int]) -> bool:
        return self.gradient_sums.accept(peaks)

    def _finish_gradients(self, peaks: list[int]) -> None:
        produced = {name for name, bits in zip(self.names, peaks, strict=False) if bits >= 0}
        mine = (block for block in self.gradient_sums.blocks if block in self._shards.held)
        self._shards.gradients = {
            block: self.gradient_sums.result_of(block) if block.tensor in produced else None for block in mine
        }
        self.gradient_sums.commit(peaks)
