"""The sums of a batch of gradients in one launch, where there is Triton: it comes with torch for CUDA and XPU."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from virtualflow.train.batched_sums import Addend, BatchedAccumulator
from virtualflow.train.scalars import float_bits

_log = logging.getLogger("virtualflow")

CHUNK = 1024
BATCH_ELEMENTS = 1 << 24  # a launch needs no memory but the gradients that wait for it
KEPT_BATCHES = 64  # whose places are kept on the device: more than a step of most models has
_TYPES = {
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
}


@triton.jit  # type: ignore[untyped-decorator]
def _add(  # type: ignore[no-untyped-def]
    addends, places, of_addend, of_chunk, sums, peaks, unclean, count, dtype: tl.constexpr, chunk: tl.constexpr
):
    """sums (+)= the chunk's values, rounded to their grid; the largest finite one; whether one was not finite.

    *addends* has four rows of *count*: addresses, constants, factors, and whether they are the first of their slot.
    *places* has three: where they go, how many they are, and their slot.
    """
    program = tl.program_id(0)
    addend = tl.load(of_addend + program)
    at = tl.load(of_chunk + program) * chunk + tl.arange(0, chunk)
    inside = at < tl.load(places + count + addend)
    address = tl.load(addends + addend).to(tl.pointer_type(dtype))
    constant = tl.load(addends + count + addend).to(tl.float64, bitcast=True)
    factor = tl.load(addends + 2 * count + addend).to(tl.float64, bitcast=True)
    value = tl.load(address + at, inside, other=0.0).to(tl.float64) * factor
    bits = value.to(tl.int64, bitcast=True) & 0x7FFFFFFFFFFFFFFF
    finite = bits < 0x7FF0000000000000
    slot = tl.load(places + 2 * count + addend)
    tl.atomic_max(peaks + slot, tl.max(tl.where(finite, bits, 0), 0))
    odd = tl.max(tl.where(finite, 0, 1), 0)
    tl.store(unclean + slot, odd.to(tl.uint8), odd > 0)
    target = sums + tl.load(places + addend) + at
    first = tl.where(inside, tl.load(addends + 3 * count + addend), 1)
    before = tl.load(target, first == 0, other=0.0)
    tl.store(target, before + ((value + constant) - constant), inside)


class TritonAccumulator(BatchedAccumulator):
    """Sums as its base class does, in one launch for each batch and dtype."""

    def __init__(self, tensors: Sequence[Tensor], batch_elements: int = BATCH_ELEMENTS) -> None:
        self._places: dict[tuple[tuple[int, int], ...], tuple[Tensor, Tensor, Tensor]] = {}
        self.launches = 0
        super().__init__(tensors, batch_elements)

    def _add_batch(self, batch: list[Addend]) -> None:
        for dtype in dict.fromkeys(addend.value.dtype for addend in batch):
            same = [addend for addend in batch if addend.value.dtype == dtype]
            if dtype in _TYPES:
                self._launch(same, _TYPES[dtype])
            else:  # integers: a few counters
                super()._add_batch(same)

    def _launch(self, batch: list[Addend], dtype: Any) -> None:
        rows = (
            [addend.value.data_ptr() for addend in batch],
            [float_bits(addend.constant) for addend in batch],
            [float_bits(addend.factor) for addend in batch],
            [int(addend.first) for addend in batch],
        )
        places, of_addend, of_chunk = self.placed(batch)
        _add[(len(of_addend),)](
            _sent(torch.tensor(rows, dtype=torch.int64), self.sums.device),
            places,
            of_addend,
            of_chunk,
            self.sums,
            self.peaks,
            self._unclean[self._node].view(torch.uint8),
            len(batch),
            dtype=dtype,
            chunk=CHUNK,
            enable_fp_fusion=False,
        )
        self.launches += 1

    def placed(self, batch: list[Addend]) -> tuple[Tensor, Tensor, Tensor]:
        """Where the addends go, and which part of which one each program takes. The same batches come in every wave."""
        key = tuple((addend.start, len(addend.value)) for addend in batch)
        if (placed := self._places.pop(key, None)) is None:
            chunks = np.array([-(-len(addend.value) // CHUNK) for addend in batch])
            of_addend = np.repeat(np.arange(len(batch)), chunks)
            of_chunk = np.arange(len(of_addend)) - np.repeat(np.cumsum(chunks) - chunks, chunks)
            rows = np.array([[addend.start, len(addend.value), addend.slot] for addend in batch]).T
            table = torch.from_numpy(np.concatenate([rows.ravel(), of_addend, of_chunk]))
            places, *others = _sent(table, self.sums.device).split([rows.size, len(of_addend), len(of_chunk)])
            placed = (places.view(rows.shape), others[0], others[1])
        self._places[key] = placed  # the last one used: the first one goes when there are too many
        if len(self._places) > KEPT_BATCHES:
            del self._places[next(iter(self._places))]
        return placed


def _sent(table: Tensor, device: torch.device) -> Tensor:
    """A copy on *device*, for which the host does not wait."""
    return table if device.type == "cpu" else table.pin_memory().to(device, non_blocking=True)


@cache
def works_on(device: torch.device) -> bool:
    """Whether Triton can build for *device*, and gives the bits of torch there."""
    values = [torch.linspace(-3, 5, 3000, device=device) ** 3, torch.tensor([1.0, torch.inf, -2e-40], device=device)]
    made = []
    try:
        for accumulator_class in (BatchedAccumulator, TritonAccumulator):
            accumulator = accumulator_class(values)
            for _ in range(2):
                accumulator.begin_node()
                for slot, value in enumerate(values):
                    accumulator.add(slot, value, 1.5 * 2.0**20, 3.0)
            accumulator.flush()
            sums = accumulator.sums[:3000]
            made.append([sums.tolist(), accumulator.peaks.tolist(), accumulator.unclean().tolist()])
    except Exception as error:  # no compiler, no driver, a device that it does not know: many types
        _log.info("sums on %s are made by torch's operations: Triton fails there (%s)", device, error)
        return False
    return made[0] == made[1]
