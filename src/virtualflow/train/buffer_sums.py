"""What the virtual nodes have made of the buffers, as one step: means of changes, and extremes of running extremes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from virtualflow.core.membership import Group
from virtualflow.errors import HiddenStateError
from virtualflow.train.buffers import Buffers
from virtualflow.train.sums import Sums


class BufferSums:
    """Follows *buffers* through the attempts at a step."""

    def __init__(self, buffers: Buffers, virtual_nodes: int, *, exact: bool) -> None:
        self._buffers = buffers
        self._sums = Sums(virtual_nodes, exact=exact)
        self._names: list[str] = []
        self._most: dict[int, Tensor] = {}
        self._extreme: set[int] = set()  # running extremes that a virtual node has changed
        self.adopt()

    def adopt(self) -> None:
        """The buffers may be another set than before."""
        self._names = [buffer.name for buffer in self._buffers.all]
        self._sums.adopt({buffer.name: buffer.carrier for buffer in self._buffers.all})

    @property
    def grids(self) -> dict[str, int]:
        """The exponent of each buffer's grid, by its name: part of the job's state."""
        return self._sums.grids_by_name()

    @grids.setter
    def grids(self, exponents: dict[str, int]) -> None:
        self._sums.set_grids(exponents)

    def begin(self) -> None:
        """Forget the last attempt."""
        self._sums.begin()
        self._most.clear()
        self._extreme.clear()

    def take(self, examples: int, witness: Callable[[str, Tensor], None] | None) -> None:
        """Take in the buffers that a virtual node with so many *examples* has changed."""
        averaged = []
        for index in self._buffers.changed:
            if self._buffers.extreme(index) is None:
                averaged.append(index)
            else:
                self._take_extreme(index)
        # Weighted by examples, so that the step ends with the mean over the global batch.
        for index, difference in zip(averaged, self._buffers.differences(averaged, examples), strict=True):
            if witness is not None:
                witness(self._names[index], difference)
            self._sums.add(index, difference)

    def flush(self, group: Group) -> None:
        """Wait until all sums and extremes are those of all workers."""
        if self._sums.order:
            group.sum(self._sums.complete(range(len(self._sums.order)))).wait()
        for index, name in enumerate(self._names):
            if name in self._buffers.extremes:
                # Which ones there are is the same on every worker; who has not touched one sends where it started.
                if index not in self._most:
                    self._most[index] = self._buffers.most(index, at_start=True)
                group.max(self._most[index]).wait()

    def peaks(self) -> list[int]:
        """For each buffer its largest addend on this worker, as bits, or -1 if nothing has changed it."""
        peaks = self._sums.peaks()
        for index in self._extreme:
            peaks[index] = 0
        return peaks

    def accept(self, peaks: list[int]) -> bool:
        """Whether these sums are right, given the *peaks* over all workers."""
        found = {
            self._names[i]: kind for i, bits in enumerate(peaks) if bits >= 0 and (kind := self._buffers.extreme(i))
        }
        new = found.keys() - self._buffers.extremes.keys()
        self._buffers.extremes.update(found)
        return self._sums.accept(self._averaged(peaks)) and not new

    def finish(self, peaks: list[int], examples: int) -> None:
        """Set the buffers to those of the step."""
        for index, bits in enumerate(peaks):
            if bits >= 0 and self._names[index] in self._buffers.extremes:
                self._buffers.set_most(index, self._most[index])
            elif bits >= 0:
                self._buffers.advance(index, self._sums.finish(index, examples))
        self._sums.commit(self._averaged(peaks))

    def _take_extreme(self, index: int) -> None:
        if self._buffers.extreme(index) == "nan":
            raise HiddenStateError(
                f"the buffer {self._names[index]!r} starts with NaNs, and a virtual node writes it. A step ends with "
                "the mean of what its virtual nodes have made of a buffer, and there is no mean with a NaN: start it "
                "at 0, and mark what was not written yet in another buffer."
            )
        self._extreme.add(index)
        if self._names[index] in self._buffers.extremes:
            most = self._buffers.most(index)
            self._most[index] = torch.maximum(self._most[index], most) if index in self._most else most

    def _averaged(self, peaks: list[int]) -> list[int]:
        return [-1 if self._names[i] in self._buffers.extremes else bits for i, bits in enumerate(peaks)]
