"""Checksums that tell whether tensors are what they were: of exact sums, and of memory as it is.

The checksum of a sum on a grid is the sum of its addends' checksums, in any order and on any devices. So nothing can
happen to a gradient between its rounding and the end of the all-reduce that they would not show.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from virtualflow.core.seeds import derive
from virtualflow.train import kernel

MASK = 2**63 - 1  # what is left of a number modulo 2**64 where a negative one means that there is none
_OFF_THE_GRID = 0x5BD1E9955BD1E995  # is added for what is no whole number of spacings; accumulate.c names the same

Number = int | Tensor  # a tensor's on an accelerator: it is read when the step is over


def of_addend(value: Tensor, constant: float, exponent: int, factor: float = 1.0) -> Number:
    """The checksum of a vector times *factor*, as it is rounded to the grid of that *constant* and *exponent*."""
    if factor != 1.0 or not value.is_floating_point():
        value = value.double() * factor
    elif value.dtype not in (torch.float32, torch.float64):
        value = value.float()
    # In two factors: the spacing of the finest grid has no reciprocal in float64.
    half = (52 - exponent) // 2
    one, other = math.ldexp(1.0, half), math.ldexp(1.0, 52 - exponent - half)
    library = kernel.load() if value.device.type == "cpu" else None
    if library is not None:
        run = library.vf_checksum_float if value.dtype == torch.float32 else library.vf_checksum_double
        return int(run(value.data_ptr(), len(value), constant, one, other))
    units = ((value.double() + constant) - constant) * one * other
    near = torch.where(units.abs() < 2.0**62, units, torch.zeros_like(units)).to(torch.int64)
    return _weighted(near) + (near.double() != units).sum() * _OFF_THE_GRID


def of_sums(sums: Tensor, exponent: int) -> Number:
    """The checksum of a vector of sums on a grid."""
    return of_addend(sums, 0.0, exponent)


def of_memory(tensor: Tensor) -> Number:
    """A digest of the tensor's elements, as they are."""
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.numel() * flat.element_size() % 4:
        flat = torch.cat([flat.view(torch.uint8), flat.new_zeros(4, dtype=torch.uint8)])
        flat = flat[: len(flat) // 4 * 4].clone()
    if flat.storage_offset() * flat.element_size() % 4:
        flat = flat.clone()
    words = flat.view(torch.int32)
    library = kernel.load() if words.device.type == "cpu" else None
    if library is not None:
        return int(library.vf_digest(words.data_ptr(), len(words)))
    return _weighted(words.to(torch.int64) & 0xFFFFFFFF)


def of_named(named: Iterable[tuple[str, Any]]) -> int:
    """A digest of tensors and plain values, and their names."""
    return total(
        (weight(name), of_memory(value) if isinstance(value, Tensor) else derive(0, repr(value)))
        for name, value in named
    )


@cache
def weight(of: str | int) -> int:
    """An odd number for one tensor among others."""
    return 2 * derive(0, "weight", of) + 1


def total(weighted: Iterable[tuple[int, Number]]) -> int:
    """The weighted sum of checksums, as it travels: never negative."""
    found, on_device = 0, dict[torch.device, list[tuple[int, Tensor]]]()
    for times, number in weighted:
        if isinstance(number, int):
            found += times * number
        else:
            on_device.setdefault(number.device, []).append((times, number))
    for device, pairs in on_device.items():  # read once, not one by one
        factors = torch.tensor([times for times, _ in pairs]).to(device)
        found += int((torch.stack([number for _, number in pairs]) * factors).sum())
    return found & MASK


def _weighted(whole: Tensor) -> Tensor:
    return (whole * (2 * torch.arange(len(whole), device=whole.device) + 1)).sum()


class SumChecksums:
    """Of all sums in one attempt: what virtual nodes have added here, what was sent, and what has arrived."""

    def __init__(self) -> None:
        self.gradients, self.buffers = NodeChecksums(), NodeChecksums()
        self.sent: list[tuple[int, Number]] = []
        self.arrived: list[tuple[int, Number]] = []

    @property
    def are_taken(self) -> bool:
        """Whether checksums are taken in this attempt: without a reason they would only cost time."""
        return self.gradients.are_taken

    def take(self, wanted: bool) -> None:
        """Take them from now on, or no longer."""
        self.gradients.are_taken = self.buffers.are_taken = wanted

    def begin(self) -> None:
        """Another attempt begins."""
        self.sent, self.arrived = [], []

    @property
    def of_nodes(self) -> list[int]:
        """One number for each virtual node that has run here, in their order."""
        pairs = zip(self.gradients.totals, self.buffers.totals, strict=True)
        return [(gradients + buffers) & MASK for gradients, buffers in pairs]


class NodeChecksums:
    """Of each virtual node all that it has added to the sums."""

    def __init__(self) -> None:
        self.are_taken = False
        self._nodes: list[list[tuple[int, Number]]] = []

    def begin(self) -> None:
        """Another attempt begins."""
        self._nodes = []

    def begin_node(self) -> None:
        """Another virtual node runs next."""
        self._nodes.append([])

    def add(self, times: int, number: Number) -> None:
        self._nodes[-1].append((times, number))

    @property
    def totals(self) -> list[int]:
        """One number for each virtual node that has run."""
        return [total(numbers) for numbers in self._nodes]
