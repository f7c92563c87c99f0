"""What the virtual nodes have made of the buffers, as one step: means of changes, and extremes of running extremes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from virtualflow.core import faults
from virtualflow.core.membership import Group
from virtualflow.errors import HiddenStateError, NonFiniteError
from virtualflow.train.buffers import Buffers
from virtualflow.train.checksums import SumChecksums
from virtualflow.train.readback import Later, Readback
from virtualflow.train.scalars import INFINITE_BITS
from virtualflow.train.sums import Sums

NAN_BITS = INFINITE_BITS + 1  # as the peak of a running extreme


class BufferSums:
    """Follows *buffers* through the attempts at a step."""

    def __init__(self, buffers: Buffers, virtual_nodes: int, *, exact: bool) -> None:
        self._buffers = buffers
        self._sums = Sums(virtual_nodes, exact=exact)
        self._names: list[str] = []
        self._most: dict[int, Tensor] = {}
        self._odd: dict[int, Tensor] = {}  # whether such an extreme was NaN: a maximum over workers may lose that
        self._extreme: set[int] = set()  # running extremes that a virtual node has changed
        self._checksums: SumChecksums | None = None
        self.adopt()

    def watch(self, checksums: SumChecksums) -> None:
        """Keep the checksums of all sums in *checksums*."""
        self._checksums, self._sums.node_checksums = checksums, checksums.buffers

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
        self._odd.clear()
        known = self._sums.grids_by_name().keys() | self._buffers.extremes.keys()
        self._buffers.begin({index for index, name in enumerate(self._names) if name in known})
        self._most.clear()
        self._extreme.clear()

    def begin_node(self) -> None:
        """Another virtual node runs next."""
        self._sums.begin_node()

    def take(self, examples: int, witness: Callable[[str, Tensor], None] | None) -> None:
        """Take in the buffers that a virtual node has changed, weighted by its *examples*."""
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
            every = range(len(self._sums.order))
            sums = self._sums.complete(every)
            if self._checksums is not None and self._checksums.are_taken:
                self._checksums.sent += self._sums.checksums(every)
            group.sum(sums).wait()
            faults.expose("received buckets", [sums])
            if self._checksums is not None and self._checksums.are_taken:
                self._checksums.arrived += self._sums.checksums(every)
        for index, name in enumerate(self._names):
            if name in self._buffers.extremes:
                # Which ones there are is the same on every worker; who has not touched one sends where it started.
                if index not in self._most:
                    self._most[index] = self._buffers.most(index, at_start=True)
                group.max(self._most[index]).wait()

    def peaks(self, readback: Readback) -> Later[list[int]]:
        """For each buffer its largest addend on this worker, as bits, or -1 if nothing has changed it."""
        largest, odd = self._sums.peaks(readback), self._sums.unclean_tensors(readback)
        still, flags = self._buffers.unexpected()
        strayed = readback.integers(flags)
        odd_extremes = {index: readback.integers(flag.reshape(1)) for index, flag in self._odd.items()}

        def peaks() -> list[int]:
            # A difference of 0 is none; where differences are not finite, the largest that is may be 0.
            nothing = set(range(len(self._names))) - set(odd())
            peaks = [-1 if bits == 0 and index in nothing else bits for index, bits in enumerate(largest())]
            for index in [*self._extreme, *(index for index, flag in zip(still, strayed(), strict=True) if flag)]:
                peaks[index] = max(peaks[index], 0)
            return [
                NAN_BITS if index in odd_extremes and any(odd_extremes[index]()) else bits
                for index, bits in enumerate(peaks)
            ]

        return peaks

    def accept(self, peaks: list[int]) -> bool:
        """Whether these sums are right, given the *peaks* over all workers."""
        extremes = {
            self._names[i]: extreme
            for i, bits in enumerate(peaks)
            if bits >= 0 and (extreme := self._buffers.extreme(i))
        }
        new = extremes.keys() - self._buffers.extremes.keys()
        self._buffers.extremes.update(extremes)
        return self._sums.accept(self._averaged(peaks)) and not new

    def finish(self, peaks: list[int], examples: int) -> None:
        """Set the buffers to those of the step."""
        if moved := [index for index, bits in enumerate(self._averaged(peaks)) if bits >= 0]:
            self._sums.divide(examples)
            self._buffers.advance(moved, [self._sums.result(index) for index in moved])
        for index, bits in enumerate(peaks):
            if bits >= 0 and self._names[index] in self._buffers.extremes:
                if bits == NAN_BITS:
                    raise NonFiniteError(f"the buffer {self._names[index]!r}, a running extreme, has become NaN")
                self._buffers.set_most(index, self._most[index])
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
            odd = most.isnan().any()
            self._odd[index] = self._odd[index] | odd if index in self._odd else odd
            self._most[index] = torch.maximum(self._most[index], most) if index in self._most else most

    def _averaged(self, peaks: list[int]) -> list[int]:
        return [-1 if self._names[i] in self._buffers.extremes else bits for i, bits in enumerate(peaks)]
