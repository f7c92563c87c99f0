"""Sums over virtual nodes of those tensors that have something to sum, each on its own grid.

Which tensors take part and where their grids lie is the job's state: decided by facts that all workers share, never
by what one of them saw.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from virtualflow.core import grid
from virtualflow.core.grid import Grid
from virtualflow.errors import NonFiniteError
from virtualflow.train.accumulate import PLAIN, Accumulator
from virtualflow.train.scalars import peak_value


class Sums:
    """Sums of tensors, in reverse order, since backward produces gradients from the last layer to the first.

    Tensors are known by their place in what was adopted last; grids by name, since places may change.
    """

    def __init__(self, virtual_nodes: int, *, exact: bool) -> None:
        self._virtual_nodes = virtual_nodes
        self._exact = exact
        self._names: list[str] = []
        self._tensors: list[Tensor] = []
        self._grids: dict[str, Grid] = {}
        self._changed = False
        self._order: list[int] = []
        self._slot: dict[int, int] = {}
        self._accumulator = Accumulator([])
        self._unlisted: dict[int, int] = {}

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
        changed, self._changed = self._changed, False
        if changed:
            listed = [index for index, name in enumerate(self._names) if name in self._grids]
            self._order = listed[::-1]
            self._slot = {index: slot for slot, index in enumerate(self._order)}
            self._accumulator = Accumulator([self._tensors[index] for index in self._order])
        self._accumulator.clear()
        return changed

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
        constant = self._grids[self._names[index]].constant if self._exact else PLAIN
        return self._accumulator.add(slot, value, constant)

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
            name, peak = self._names[index], peak_value(bits)
            self._check_range(name, peak)
            if name not in self._grids:
                self._grids[name] = self._grid_for(index, peak)
                self._changed = True
                right = False
            elif self._moves(index) and not self._fits(index, peak):
                self._grids[name] = self._grid_for(index, peak)
                right = False
        return right

    def commit(self, peaks: list[int]) -> None:
        """Move the grids to where the next step is likely to need them."""
        for index, bits in enumerate(peaks):
            if bits >= 0 and self._moves(index):
                name = self._names[index]
                self._grids[name] = grid.after(
                    self._grids[name], peak_value(bits), self._virtual_nodes, self._lowest(index)
                )

    def finish(self, index: int, weight: float) -> Tensor:
        """The sum of tensor *index* divided by *weight*."""
        return self._accumulator.finish(self._slot[index], weight)

    def norm(self) -> float:
        """The 2-norm of all finished sums."""
        return self._accumulator.norm()

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
