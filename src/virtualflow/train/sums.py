"""Sums over virtual nodes of those tensors that have something to sum, each on its own grid.

Which tensors take part and where their grids lie is the job's state: decided by facts that all workers share, never
by what one of them saw.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from virtualflow.core import grid
from virtualflow.core.grid import Grid
from virtualflow.errors import NonFiniteError
from virtualflow.train import checksums
from virtualflow.train.accumulate import PLAIN, accumulator
from virtualflow.train.checksums import NodeChecksums, Number
from virtualflow.train.readback import Later, Readback
from virtualflow.train.scalars import peak_value
from virtualflow.train.square_tree import scaled_norm

_MIDDLE = (2.0**-900, 2.0**1000)  # sums of squares in between have lost nothing below or above


def in_range(squares: float) -> bool:
    """Whether a sum of squares has lost nothing to the range of float64."""
    return _MIDDLE[0] < squares < _MIDDLE[1]


class Sums:
    """Sums of tensors, in reverse order, since backward produces gradients from the last layer to the first.

    Tensors are known by their place in what was adopted last; grids by name, since places may change.
    """

    def __init__(self, virtual_nodes: int, *, exact: bool) -> None:
        self._virtual_nodes = virtual_nodes
        self._exact = exact
        self.node_checksums: NodeChecksums | None = None  # if a sentinel compares them
        self._names: list[str] = []
        self._tensors: list[Tensor] = []
        self._grids: dict[str, Grid] = {}
        self._changed = False
        self._order: list[int] = []
        self._slot: dict[int, int] = {}
        self._accumulator = accumulator([])
        self._unlisted: dict[int, int] = {}
        self._unlisted_odd: list[int | None] = []  # the first one of each virtual node that was not finite

    def adopt(self, tensors: Mapping[str, Tensor]) -> None:
        """Sum *tensors* from the next ``begin`` on. What was summed before under the same name keeps its grid."""
        self._names, self._tensors = list(tensors), list(tensors.values())
        self._changed = True

    def grids_by_name(self) -> dict[str, int]:
        """The exponent of each tensor's grid: the part of the job's state that is kept here."""
        return {name: grid.exponent for name, grid in self._grids.items()}

    def set_grids(self, exponents: Mapping[str, int]) -> None:
        """Go on from what ``grids_by_name`` gave."""
        self._grids = {name: Grid(exponent) for name, exponent in exponents.items()}
        self._changed = True

    @property
    def order(self) -> list[int]:
        """The tensors that take part, as they lie in the buffer."""
        return self._order

    @property
    def buffer(self) -> Tensor:
        """All sums, as they are all-reduced."""
        return self._accumulator.sums

    def begin(self) -> bool:
        """Forget all sums; return whether other tensors may take part than last time."""
        self._unlisted.clear()
        self._unlisted_odd.clear()
        if self.node_checksums is not None:
            self.node_checksums.begin()
        changed, self._changed = self._changed, False
        if changed:
            listed = [index for index, name in enumerate(self._names) if name in self._grids]
            self._order = listed[::-1]
            self._slot = {index: slot for slot, index in enumerate(self._order)}
            self._accumulator = accumulator([self._tensors[index] for index in self._order])
        self._accumulator.clear()
        return changed

    def slot(self, index: int) -> int | None:
        """Where tensor *index* lies, or None if it takes no part yet."""
        return self._slot.get(index)

    def begin_node(self) -> None:
        """What is added from now on is another virtual node's."""
        self._accumulator.begin_node()
        self._unlisted_odd.append(None)
        if self.node_checksums is not None:
            self.node_checksums.begin_node()

    def add(self, index: int, value: Tensor, factor: float = 1.0) -> None:
        """Add what a virtual node produced for tensor *index*, times *factor*."""
        slot = self._slot.get(index)
        if slot is None:
            self._measure(index, value, factor)
            return
        constant = self._grids[self._names[index]].constant if self._exact else PLAIN
        value = value.to(self._accumulator.sums.device)
        self._accumulator.add(slot, value, constant, factor)
        if self.node_checksums is not None and self.node_checksums.are_taken:
            name = self._names[index]
            flat = self._accumulator.flat(slot, value)
            number = checksums.of_addend(flat, constant, self._grids[name].exponent, factor)
            self.node_checksums.add(checksums.weight(name), number)

    def _measure(self, index: int, value: Tensor, factor: float) -> None:
        """The step will be replayed with this tensor taking part."""
        measure = accumulator([value])
        measure.begin_node()
        measure.add(0, value, PLAIN, factor)
        if bool(measure.unclean().any()) and self._unlisted_odd[-1] is None:
            self._unlisted_odd[-1] = index
        self._unlisted[index] = max(self._unlisted.get(index, -1), int(measure.peaks))

    def complete(self, slots: range) -> Tensor:
        """The part of the buffer that holds *slots*, ready to be all-reduced."""
        return self._accumulator.complete(slots)

    def checksums(self, slots: range) -> list[tuple[int, Number]]:
        """Of the sums in *slots*, which are complete: before the all-reduce of this worker's, after it of all."""
        names = [self._names[self._order[slot]] for slot in slots]
        return [
            (checksums.weight(name), checksums.of_sums(self._accumulator.sums_of(slot), self._grids[name].exponent))
            for slot, name in zip(slots, names, strict=True)
        ]

    def peaks(self, readback: Readback) -> Later[list[int]]:
        """For each tensor the bits of its largest addend on this worker, or -1."""
        listed = readback.integers(self._accumulator.peaks)

        def peaks() -> list[int]:
            peaks = [-1] * len(self._tensors)
            for index, peak in zip(self._order, listed(), strict=True):
                peaks[index] = peak
            return [self._unlisted.get(index, peak) for index, peak in enumerate(peaks)]

        return peaks

    def unclean_tensors(self, readback: Readback) -> Later[list[int]]:
        """Those of which an addend was not finite on this worker, and those that take no part yet."""
        flags = readback.integers(self._accumulator.unclean().any(0))
        return lambda: [*(self._order[slot] for slot, flag in enumerate(flags()) if flag), *self._unlisted]

    def unclean(self, readback: Readback) -> Later[list[int]]:
        """For each virtual node 1 + the first tensor that was not finite, as backward goes, or 0."""
        flags = readback.integers(self._accumulator.unclean().flatten())

        def unclean() -> list[int]:
            values, count = flags(), len(self._order)
            nodes = [values[node * count : (node + 1) * count] for node in range(len(self._unlisted_odd))]
            return [
                1 + (self._order[slots.index(1)] if 1 in slots else odd if odd is not None else -1)
                for slots, odd in zip(nodes, self._unlisted_odd, strict=True)
            ]

        return unclean

    def accept(self, peaks: list[int]) -> bool:
        """Whether these sums are right, given the *peaks* over all workers; else move the grids for the replay."""
        moved = self.misfits(peaks)
        self._changed = self._changed or any(name not in self._grids for name in moved)
        self._grids |= moved
        return not moved

    def misfits(self, peaks: list[int]) -> dict[str, Grid]:
        """The grids that these *peaks* do not fit, or that have not been there, as they should be."""
        moved = {}
        for index, bits in enumerate(peaks):
            if bits < 0:
                continue
            name, peak = self._names[index], peak_value(bits)
            self._check_range(name, peak)
            if name not in self._grids or (self._moves(index) and not self._fits(index, peak)):
                moved[name] = self._grid_for(index, peak)
        return moved

    def commit(self, peaks: list[int]) -> None:
        """Move the grids to where the next step is likely to need them."""
        for index, bits in enumerate(peaks):
            if bits >= 0 and self._moves(index):
                name = self._names[index]
                self._grids[name] = grid.after(
                    self._grids[name], peak_value(bits), self._virtual_nodes, self._lowest(index)
                )

    def divide(self, weight: float, *, squares: bool = False) -> Tensor | None:
        """Divide all sums by *weight*; return the sum of the *squares* of what they become, if asked for."""
        return self._accumulator.divide(weight, squares=squares)

    def result(self, index: int) -> Tensor:
        """What ``divide`` has made of the sum of tensor *index*."""
        return self._accumulator.result(self._slot[index])

    def norm(self, squares: float) -> float:
        """The 2-norm of all results, whose *squares* have that sum."""
        if in_range(squares):
            return math.sqrt(squares)
        return scaled_norm([self._accumulator.flat_result(slot) for slot in range(len(self._accumulator.slots))])

    def _moves(self, index: int) -> bool:
        return self._exact and self._tensors[index].is_floating_point()

    def _lowest(self, index: int) -> int:
        return grid.LOWEST_DOUBLE if self._tensors[index].dtype == torch.float64 else grid.LOWEST

    def _fits(self, index: int, peak: float) -> bool:
        return grid.fits(self._grids[self._names[index]], peak, self._virtual_nodes, self._lowest(index))

    def _grid_for(self, index: int, peak: float) -> Grid:
        if self._tensors[index].is_floating_point():
            return grid.grid_for(peak, self._virtual_nodes, self._lowest(index))
        return Grid(grid.INTEGERS)

    def _check_range(self, name: str, peak: float) -> None:
        if not grid.summable(peak, self._virtual_nodes):
            raise NonFiniteError(
                f"{name!r} took values up to {peak:.3g}, too large to be summed over {self._virtual_nodes} virtual "
                "nodes in float64. The model was not updated. Scale the loss down."
            )
