"""One float64 buffer that sums tensors over virtual nodes: on a grid, so that the order does not matter, or plainly.

The fused C kernel does the work on a CPU; torch operations do it elsewhere and give the same bits.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from virtualflow.train import kernel

LANES = 4096  # partial sums of squares; accumulate.c names the same number
ALIGNMENT = 8  # slots start at multiples of 64 bytes
PLAIN = 0.0  # as a grid constant: (g + 0) - 0 rounds nothing
_MIDDLE = (2.0**-900, 2.0**1000)  # sums of squares in between have lost nothing below or above


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


class Accumulator:
    """Sums for *tensors*, each in a slot of one flat buffer, in their order."""

    def __init__(self, tensors: Sequence[Tensor], *, fused: bool = True) -> None:
        self._slots: list[Slot] = []
        end = 0
        for tensor in tensors:
            self._slots.append(Slot.like(tensor, end))
            end += -(-tensor.numel() // ALIGNMENT) * ALIGNMENT
        device = tensors[0].device if tensors else torch.device("cpu")
        self._allocate(end, device)
        self._peaks = torch.empty(len(tensors), dtype=torch.int64, device=device)
        self._lanes = torch.empty(LANES, dtype=torch.float64, device=device)
        self._peaks_at = self._peaks.data_ptr()
        self._kernel = kernel.load() if fused and device.type == "cpu" else None
        self.clear()

    def clear(self) -> None:
        """Forget all sums. Touches no memory: the first addend of a slot overwrites it."""
        if self._holders() != self._holders_at_first:
            # An optimizer or a script has kept a gradient of the last step: it keeps its values.
            self._allocate(len(self.sums), self.sums.device)
        self._filled = [False] * len(self._slots)
        self._finished: list[int] = []
        self._peaks.fill_(-1)
        self._lanes.zero_()

    def add(self, index: int, value: Tensor, constant: float) -> bool:
        """Add *value*, rounded to the grid of *constant*; return whether all of it was finite."""
        slot = self._slots[index]
        if value.stride() != slot.stride:
            value = torch.empty_strided(slot.shape, slot.stride, dtype=value.dtype, device=value.device).copy_(value)
        if value.dtype not in (torch.float32, torch.float64):
            value = value.float() if value.is_floating_point() else value.double()
        first = not self._filled[index]
        self._filled[index] = True
        if self._kernel is not None:
            return self._add_fused(index, value, constant, first)
        return self._add_with_torch(index, value, constant, first)

    def complete(self, indices: range) -> Tensor:
        """The part of the buffer that holds *indices*, ready to be all-reduced: what nobody added is zero."""
        for index in indices:
            slot, after = self._slots[index], self._start(index + 1)
            # Padding travels too; left alone it could hold NaNs.
            self.sums[slot.end if self._filled[index] else slot.start : after] = 0.0
            self._filled[index] = True
        return self.sums[self._start(indices.start) : self._start(indices.stop)]

    def peaks(self) -> list[int]:
        """For each tensor its largest finite addend, as the bits of a float64, or -1 where nothing was added."""
        return [int(peak) for peak in self._peaks.tolist()]

    def finish(self, index: int, weight: float) -> Tensor:
        """The sum divided by *weight*, with the tensor's shape, strides and dtype.

        It lives in the slot's own memory where the dtype allows: there is no second gradient buffer.
        """
        slot = self._slots[index]
        self._finished.append(index)
        sums = self.sums[slot.start : slot.end]
        if _finishes_double(slot):
            return slot.shaped(self._finish_double(sums, weight)).to(slot.dtype)
        results = self._result(index)
        if self._kernel is not None:
            self._kernel.vf_finish_float(sums.data_ptr(), len(sums), weight, self._lanes.data_ptr())
        else:
            self._finish_with_torch(sums, results, weight)
        return slot.shaped(results).to(slot.dtype)

    def norm(self) -> float:
        """The 2-norm of all that was finished so far, summed in one fixed order."""
        squares = self._summed_lanes()
        if not _MIDDLE[0] < squares < _MIDDLE[1]:
            return self._scaled_norm()
        return math.sqrt(squares)

    def _scaled_norm(self) -> float:
        """The norm where squares of float64 may have left its range."""
        results = [self._result(index) for index in self._finished if self._slots[index].shape.numel()]
        peaks = [float(result.abs().max()) for result in results]
        peak = math.nan if any(map(math.isnan, peaks)) else max(peaks, default=0.0)
        if not 0.0 < peak < math.inf:
            return peak
        exponent = math.frexp(peak)[1]
        self._lanes.zero_()
        for result in results:
            for part in result.split(LANES):
                self._add_squares(torch.ldexp(part.double(), torch.tensor(-exponent)))
        try:
            return math.ldexp(math.sqrt(self._summed_lanes()), exponent)
        except OverflowError:
            return math.inf

    def _summed_lanes(self) -> float:
        lanes = self._lanes
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = lanes[:half] + lanes[half:]
        return float(lanes)

    def _allocate(self, length: int, device: torch.device) -> None:
        self.sums = torch.empty(length, dtype=torch.float64, device=device)
        self._singles = self.sums.view(torch.float32)
        self._sums_at = self.sums.data_ptr()
        self._holders_at_first = self._holders()

    def _holders(self) -> tuple[int, int]:
        """How many tensors and how many others hold the memory of the sums."""
        storage = self.sums.untyped_storage()
        return torch._C._storage_Use_Count(storage._cdata), sys.getrefcount(storage)

    def _result(self, index: int) -> Tensor:
        slot = self._slots[index]
        if _finishes_double(slot):
            return self.sums[slot.start : slot.end]
        return self._singles[2 * slot.start : slot.start + slot.end]

    def _start(self, index: int) -> int:
        return self._slots[index].start if index < len(self._slots) else len(self.sums)

    def _add_fused(self, index: int, value: Tensor, constant: float, first: bool) -> bool:
        assert self._kernel is not None
        add = self._kernel.vf_add_float if value.dtype == torch.float32 else self._kernel.vf_add_double
        target = self._sums_at + 8 * self._slots[index].start
        return not add(value.data_ptr(), target, value.numel(), constant, first, self._peaks_at + 8 * index)

    def _add_with_torch(self, index: int, value: Tensor, constant: float, first: bool) -> bool:
        target = self.sums[self._slots[index].start : self._slots[index].end]
        flat = value.as_strided((value.numel(),), (1,), value.storage_offset())
        clean = True
        # On a CPU a chunk and its float64 copy stay in the cache; an accelerator wants few launches.
        size = 65536 if flat.device.type == "cpu" else max(len(flat), 1)
        for chunk, part in zip(flat.split(size), target.split(size), strict=True):
            rounded = chunk.to(torch.float64, copy=True).add_(constant).sub_(constant)
            part.copy_(rounded) if first else part.add_(rounded)
            peak = torch.stack(torch.aminmax(chunk)).abs().amax()
            if not torch.isfinite(peak):
                clean = False
                peak = torch.where(torch.isfinite(chunk), chunk, 0).abs().amax()
            self._raise_peak(index, peak)
        return clean

    def _raise_peak(self, index: int, peak: Tensor) -> None:
        self._peaks[index] = torch.maximum(self._peaks[index], peak.double().view(torch.int64))

    def _finish_with_torch(self, sums: Tensor, results: Tensor, weight: float) -> None:
        for start in range(0, len(sums), LANES):
            # Results overwrite sums from the front: they take half the space, so never one that is still needed.
            quotients = (sums[start : start + LANES] / weight).float()
            quotients.masked_fill_(quotients.isnan(), math.nan)
            results[start : start + LANES] = quotients
            self._add_squares(quotients.double())

    def _finish_double(self, sums: Tensor, weight: float) -> Tensor:
        sums.div_(weight)
        sums.masked_fill_(sums.isnan(), math.nan)
        for part in sums.split(LANES):
            self._add_squares(part)
        return sums

    def _add_squares(self, values: Tensor) -> None:
        self._lanes[: len(values)] += values * values


def _finishes_double(slot: Slot) -> bool:
    return slot.dtype == torch.float64 or not slot.dtype.is_floating_point


def is_dense(tensor: Tensor) -> bool:
    """Whether *tensor* fills its memory without gaps or overlaps, so that strides alone tell the order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
