"""One float64 buffer that sums tensors over virtual nodes: on a grid, so that the order does not matter, or plainly.

``accumulate.c`` does the work on a CPU. Elsewhere, and without a C compiler, kernels take a whole batch of gradients at
once, and nothing is read back from the device. All of them give the same bits.
"""

from __future__ import annotations

import importlib.util
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from virtualflow.train import kernel
from virtualflow.train.square_tree import LANES, LEVELS, root_of

ALIGNMENT = 8  # slots start at multiples of 64 bytes
PLAIN = 0.0  # as a grid constant: (g + 0) - 0 rounds nothing


@dataclass(frozen=True, slots=True)
class Slot:
    """Where the sums of one tensor lie, and how its elements are laid out there."""

    start: int
    end: int
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def like(cls, tensor: Tensor, start: int) -> Slot:
        stride = tensor.stride() if is_dense(tensor) else torch.empty(tensor.shape, device="meta").stride()
        return cls(start, start + tensor.numel(), tensor.shape, stride, tensor.dtype)

    def shaped(self, flat: Tensor) -> Tensor:
        """*flat*, with this slot's shape and strides."""
        return flat.as_strided(self.shape, self.stride, flat.storage_offset())

    @property
    def stays_double(self) -> bool:
        """Whether its results are float64: others are float32, and take half of the space."""
        return self.dtype == torch.float64 or not self.dtype.is_floating_point


class Accumulator(ABC):
    """Sums for *tensors*, each in a slot of one flat buffer, in their order."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.slots: list[Slot] = []
        end = 0
        for tensor in tensors:
            self.slots.append(Slot.like(tensor, end))
            end += -(-tensor.numel() // ALIGNMENT) * ALIGNMENT
        device = tensors[0].device if tensors else torch.device("cpu")
        self._allocate(end, device)
        self.peaks = torch.empty(len(tensors), dtype=torch.int64, device=device)  # see `add`
        self.clear()

    def clear(self) -> None:
        """Forget all sums. Touches no memory of theirs: the first addend of a slot overwrites it."""
        if self._holders() != self._holders_at_first:
            # An optimizer or a script has kept a gradient of the last step: it keeps its values.
            self._allocate(len(self.sums), self.sums.device)
        self._filled = [False] * len(self.slots)
        self.peaks.fill_(-1)

    @abstractmethod
    def begin_node(self) -> None:
        """What is added from now on is another virtual node's."""

    def add(self, index: int, value: Tensor, constant: float, factor: float = 1.0) -> None:
        """Add *value* times *factor*, rounded to the grid of *constant*.

        ``peaks`` has the largest finite addend of each tensor, as the bits of a float64, and -1 where there is none.
        """
        first, self._filled[index] = not self._filled[index], True
        self._add(index, self.flat(index, value), constant, factor, first)

    def flat(self, index: int, value: Tensor) -> Tensor:
        """*value* as a vector, in the order in which the sums of that slot lie."""
        slot = self.slots[index]
        if value.stride() != slot.stride:
            value = torch.empty_strided(slot.shape, slot.stride, dtype=value.dtype, device=value.device).copy_(value)
        return value.as_strided((value.numel(),), (1,), value.storage_offset())

    def sums_of(self, index: int) -> Tensor:
        """The sums of a slot that is complete, as a vector."""
        return self.sums[self.slots[index].start : self.slots[index].end]

    def add_part(self, index: int, start: int, value: Tensor, constant: float, factor: float = 1.0) -> None:
        """The same for a part of it, a vector from element *start* on, where ``complete`` has made sums zero."""
        self._add(index, value, constant, factor, first=False, start=start)

    @abstractmethod
    def unclean(self) -> Tensor:
        """For each virtual node since ``clear``, and each slot, whether an addend was not finite."""

    def complete(self, indices: range) -> Tensor:
        """The part of the buffer that holds *indices*, ready to be all-reduced: what nobody added is zero."""
        self.flush()
        for index in indices:
            slot, after = self.slots[index], self._start(index + 1)
            # Padding travels too; left alone it could hold NaNs.
            self.sums[slot.end if self._filled[index] else slot.start : after] = 0.0
            self._filled[index] = True
        return self.sums[self._start(indices.start) : self._start(indices.stop)]

    def divide(self, weight: float, *, squares: bool = False) -> Tensor | None:
        """Divide all sums by *weight*; return the sum of the results' *squares* if asked for, as a float64.

        Results live in their slot's own memory: there is no second gradient buffer.
        """
        self.flush()
        for index, slot in enumerate(self.slots):
            if not self._filled[index]:
                self.sums[slot.start : slot.end] = 0.0
        return self._divide(weight, squares)

    def result(self, index: int) -> Tensor:
        """What ``divide`` has made of a sum, with the tensor's shape, strides and dtype."""
        slot = self.slots[index]
        return slot.shaped(self.flat_result(index)).to(slot.dtype)

    def flat_result(self, index: int) -> Tensor:
        """The same as a vector, as it lies in memory."""
        slot = self.slots[index]
        if slot.stays_double:
            return self.sums[slot.start : slot.end]
        return self._singles[2 * slot.start : slot.start + slot.end]

    @abstractmethod
    def _add(self, index: int, value: Tensor, constant: float, factor: float, first: bool, start: int = 0) -> None: ...
    @abstractmethod
    def flush(self) -> None:
        """Have everything summed that was added."""

    @abstractmethod
    def _divide(self, weight: float, squares: bool) -> Tensor | None: ...

    def _allocate(self, length: int, device: torch.device) -> None:
        self.sums = torch.empty(length, dtype=torch.float64, device=device)
        self._singles = self.sums.view(torch.float32)
        self._holders_at_first = self._holders()

    def _holders(self) -> tuple[int, int]:
        """How many tensors and how many others hold the memory of the sums."""
        storage = self.sums.untyped_storage()
        return torch._C._storage_Use_Count(storage._cdata), sys.getrefcount(storage)

    def _start(self, index: int) -> int:
        return self.slots[index].start if index < len(self.slots) else len(self.sums)


class FusedAccumulator(Accumulator):
    """On a CPU, in C: each gradient is summed while it is still in the cache."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        library = kernel.load()
        assert library is not None
        self._library = library
        self._tree = torch.empty(0)
        super().__init__(tensors)

    def clear(self) -> None:
        super().clear()
        self._unclean: list[list[int]] = []

    def begin_node(self) -> None:
        self._unclean.append([])

    def unclean(self) -> Tensor:
        flags = torch.zeros(len(self._unclean), len(self.slots), dtype=torch.bool)
        for node, indices in enumerate(self._unclean):
            flags[node, indices] = True
        return flags

    def _add(self, index: int, value: Tensor, constant: float, factor: float, first: bool, start: int = 0) -> None:
        if factor != 1.0 or not value.is_floating_point():
            value = value.double() * factor
        elif value.dtype not in (torch.float32, torch.float64):
            value = value.float()
        add = self._library.vf_add_float if value.dtype == torch.float32 else self._library.vf_add_double
        target = self.sums.data_ptr() + 8 * (self.slots[index].start + start)
        if add(value.data_ptr(), target, len(value), constant, first, self.peaks.data_ptr() + 8 * index):
            self._unclean[-1].append(index)

    def flush(self) -> None:
        pass

    def _divide(self, weight: float, squares: bool) -> Tensor | None:
        if squares and not len(self._tree):
            self._tree = torch.empty(LEVELS, LANES, dtype=torch.float64)
        rows = torch.zeros(1, dtype=torch.int64)
        tree = self._tree.data_ptr() if squares else None
        for slot in self.slots:
            finish = self._library.vf_finish_double if slot.stays_double else self._library.vf_finish_float
            finish(self.sums.data_ptr() + 8 * slot.start, slot.end - slot.start, weight, tree, rows.data_ptr())
        return root_of(self._tree, int(rows)) if squares else None


def accumulator(tensors: Sequence[Tensor]) -> Accumulator:
    """The accumulator that is made for where *tensors* are."""
    if not tensors or (tensors[0].device.type == "cpu" and kernel.load() is not None):
        return FusedAccumulator(tensors)
    from virtualflow.train.batched_sums import BatchedAccumulator

    if tensors[0].device.type != "cpu" and importlib.util.find_spec("triton") is not None:
        from virtualflow.train.triton_sums import TritonAccumulator, works_on

        if works_on(tensors[0].device):
            return TritonAccumulator(tensors)
    return BatchedAccumulator(tensors)


def is_dense(tensor: Tensor) -> bool:
    """Whether *tensor* fills its memory without gaps or overlaps, so that strides alone give the order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
