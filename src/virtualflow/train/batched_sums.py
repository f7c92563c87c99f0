"""Sums on an accelerator: gradients wait until there are enough of them for a batch, and nothing is read back.

Two kinds of kernels do the work: Triton's, in one launch for each batch, where there is Triton; and torch's own
operations on lists of tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from virtualflow.train.accumulate import Accumulator
from virtualflow.train.square_tree import blocks, sum_of_squares

BATCH_ELEMENTS = 1 << 22  # what is worth a launch, and bounds the memory for float64 copies
NODES_AT_FIRST = 8


@dataclass(frozen=True, slots=True)
class Addend:
    """A part of one gradient, to be added to a slot from *start* on."""

    slot: int
    start: int  # in the whole buffer
    value: Tensor
    constant: float
    factor: float
    first: bool


class BatchedAccumulator(Accumulator):
    """Takes what virtual nodes add in batches of about *batch_elements*."""

    def __init__(self, tensors: Sequence[Tensor], batch_elements: int = BATCH_ELEMENTS) -> None:
        self._batch_elements = batch_elements
        self._waiting: list[Addend] = []
        self._unclean = torch.empty(0)
        super().__init__(tensors)
        self._unclean = torch.zeros(0, len(tensors), dtype=torch.bool, device=self.sums.device)

    def clear(self) -> None:
        super().clear()
        self._waiting.clear()
        self._elements = 0
        self._node = -1
        self._unclean.zero_()

    def begin_node(self) -> None:
        self.flush()
        self._node += 1
        if self._node >= len(self._unclean):
            more = max(NODES_AT_FIRST, len(self._unclean))
            self._unclean = torch.cat([self._unclean, self._unclean.new_zeros(more, len(self.slots))])

    def unclean(self) -> Tensor:
        self.flush()
        return self._unclean[: self._node + 1]

    def _add(self, index: int, value: Tensor, constant: float, factor: float, first: bool, start: int = 0) -> None:
        start += self.slots[index].start
        for part in value.split(self._batch_elements) if len(value) else ():
            self._waiting.append(Addend(index, start, part, constant, factor, first))
            start += len(part)
            self._elements += len(part)
            if self._elements >= self._batch_elements:
                self.flush()

    def flush(self) -> None:
        if self._waiting:
            self._add_batch(sorted(self._waiting, key=lambda addend: addend.start))
        self._waiting.clear()
        self._elements = 0

    def _add_batch(self, batch: list[Addend]) -> None:
        wide = torch.empty(sum(len(addend.value) for addend in batch), dtype=torch.float64, device=self.sums.device)
        parts = list(wide.split([len(addend.value) for addend in batch]))
        torch._foreach_copy_(parts, [addend.value for addend in batch])
        if any(addend.factor != 1.0 for addend in batch):
            torch._foreach_mul_(parts, [addend.factor for addend in batch])
        self._measure(batch, parts, wide)
        constants = [addend.constant for addend in batch]
        torch._foreach_add_(parts, constants)
        torch._foreach_sub_(parts, constants)
        targets = [self.sums[addend.start : addend.start + len(addend.value)] for addend in batch]
        later = [place for place, addend in enumerate(batch) if not addend.first]
        if later:
            torch._foreach_add_([targets[place] for place in later], [parts[place] for place in later])
        if len(later) < len(batch):
            new = [place for place, addend in enumerate(batch) if addend.first]
            torch._foreach_copy_([targets[place] for place in new], [parts[place] for place in new])

    def _measure(self, batch: list[Addend], parts: list[Tensor], wide: Tensor) -> None:
        magnitudes = wide.abs()
        sizes = [len(part) for part in parts]
        largest = torch.stack(torch._foreach_max(magnitudes.split(sizes)))
        finite = torch.stack(torch._foreach_max(magnitudes.nan_to_num_(nan=0.0, posinf=0.0).split(sizes)))
        bits, odd = finite.view(torch.int64), ~largest.isfinite()
        for slots, places in _runs([addend.slot for addend in batch]):
            torch.maximum(self.peaks[slots], bits[places], out=self.peaks[slots])
            self._unclean[self._node, slots] |= odd[places]

    def _divide(self, weight: float, squares: bool) -> Tensor | None:
        # By a tensor: kernels of CUDA multiply by the reciprocal of a plain number, which rounds twice.
        self.sums.div_(torch.full((), weight, dtype=torch.float64, device=self.sums.device))
        narrow = [index for index, slot in enumerate(self.slots) if not slot.stays_double and slot.end > slot.start]
        lengths = [self.slots[index].end - self.slots[index].start for index in narrow]
        for pieces in blocks(lengths):
            sources, targets = [], []
            for place, start, stop, _ in pieces:
                slot = self.slots[narrow[place]]
                sources.append(self.sums[slot.start + start : slot.start + stop])
                targets.append(self.flat_result(narrow[place])[start:stop])
            # By way of other memory: results overwrite sums from the front, so never one of a later block.
            results = torch.empty(sum(map(len, sources)), dtype=torch.float32, device=self.sums.device)
            parts = list(results.split([len(source) for source in sources]))
            torch._foreach_copy_(parts, sources)
            results.masked_fill_(results.isnan(), math.nan)
            torch._foreach_copy_(targets, parts)
        for slot in self.slots:
            if slot.dtype == torch.float64:
                sums = self.sums[slot.start : slot.end]
                sums.masked_fill_(sums.isnan(), math.nan)
        if not squares:
            return None
        return sum_of_squares([self.flat_result(index) for index in range(len(self.slots))])


def _runs(slots: list[int]) -> list[tuple[slice, slice]]:
    """Consecutive ones among *slots*, and where they are in that list."""
    runs: list[tuple[int, int]] = []
    for place, slot in enumerate(slots):
        if runs and slot == slots[runs[-1][0]] + place - runs[-1][0]:
            runs[-1] = (runs[-1][0], place + 1)
        else:
            runs.append((place, place + 1))
    return [(slice(slots[begin], slots[begin] + end - begin), slice(begin, end)) for begin, end in runs]
