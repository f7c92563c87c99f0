"""Sums over virtual nodes of those tensors that have something to sum, each on its own grid.

Which tensors take part and where their grids lie is the job's state: decided by facts that all workers share, never
by what one of them saw.
"""

from __future__ import annotations

from torch import Tensor

from virtualflow.core import grid
from virtualflow.core.grid import Grid
from virtualflow.train.accumulate import PLAIN, Accumulator
from virtualflow.train.scalars import peak_value


class Sums:
    """Sums of *tensors*, in reverse order, since backward produces gradients from the last layer to the first."""

    def __init__(self, tensors: list[Tensor], virtual_nodes: int, *, exact: bool) -> None:
        self._tensors = tensors
        self._virtual_nodes = virtual_nodes
        self._exact = exact
        self.grids: dict[int, Grid] = {}
        self._order: list[int] = []
        self._slot: dict[int, int] = {}
        self._accumulator = Accumulator([])
        self._unlisted: dict[int, int] = {}

    @property
    def order(self) -> list[int]:
        """The tensors that take part, as they lie in the buffer."""
        return self._order

    @property
    def buffer(self) -> Tensor:
        """All sums, as they are all-reduced."""
        return self._accumulator.sums

    def begin(self) -> bool:
        """Forget all sums; return whether another set of tensors takes part than last time."""
        self._unlisted.clear()
        grown = len(self._order) != len(self.grids)
        if grown:
            self._order = sorted(self.grids, reverse=True)
            self._slot = {index: slot for slot, index in enumerate(self._order)}
            self._accumulator = Accumulator([self._tensors[index] for index in self._order])
        self._accumulator.clear()
        return grown

    def slot(self, index: int) -> int | None:
        """Where tensor *index* lies, or None if it takes no part yet."""
        return self._slot.get(index)

    def add(self, index: int, value: Tensor) -> bool:
        """Add what a virtual node produced for tensor *index*; return whether all of it was finite."""
        slot = self._slot.get(index)
        if slot is None:
            # Only measured: the step will be replayed with this tensor taking part.
            measure = Accumulator([value])
            clean = measure.add(0, value, PLAIN)
            self._unlisted[index] = max(self._unlisted.get(index, -1), *measure.peaks())
            return clean
        return self._accumulator.add(slot, value, self.grids[index].constant if self._exact else PLAIN)

    def complete(self, slots: range) -> Tensor:
        """The part of the buffer that holds *slots*, ready to be all-reduced."""
        return self._accumulator.complete(slots)

    def peaks(self) -> list[int]:
        """For each tensor the bits of its largest addend on this worker, or -1."""
        peaks = [-1] * len(self._tensors)
        for index, peak in zip(self._order, self._accumulator.peaks(), strict=True):
            peaks[index] = peak
        for index, peak in self._unlisted.items():
            peaks[index] = peak
        return peaks

    def accept(self, peaks: list[int]) -> bool:
        """Whether these sums are right, given the *peaks* over all workers; else move the grids for the replay."""
        right = True
        for index, bits in enumerate(peaks):
            if bits < 0:
                continue
            peak = peak_value(bits)
            if index not in self.grids:
                self.grids[index] = self._grid_for(index, peak)
                right = False
            elif self._moves(index) and not grid.fits(self.grids[index], peak, self._virtual_nodes):
                self.grids[index] = grid.grid_for(peak, self._virtual_nodes)
                right = False
        return right

    def commit(self, peaks: list[int]) -> None:
        """Move the grids to where the next step is likely to need them."""
        for index, bits in enumerate(peaks):
            if bits >= 0 and self._moves(index):
                self.grids[index] = grid.after(self.grids[index], peak_value(bits), self._virtual_nodes)

    def finish(self, index: int, weight: float) -> Tensor:
        """The sum of tensor *index* divided by *weight*."""
        return self._accumulator.finish(self._slot[index], weight)

    def norm(self) -> float:
        """The 2-norm of all finished sums."""
        return self._accumulator.norm()

    def _moves(self, index: int) -> bool:
        return self._exact and self._tensors[index].is_floating_point()

    def _grid_for(self, index: int, peak: float) -> Grid:
        if self._tensors[index].is_floating_point():
            return grid.grid_for(peak, self._virtual_nodes)
        return Grid(grid.INTEGERS)
