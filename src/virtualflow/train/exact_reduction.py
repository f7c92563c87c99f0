"""The same bits for any mapping: every addend is rounded to a grid shared by all, and summed in float64."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from virtualflow.core import faults
from virtualflow.core.membership import Group, Work
from virtualflow.train.buckets import Buckets, cut
from virtualflow.train.buffers import Buffers
from virtualflow.train.checksums import SumChecksums
from virtualflow.train.readback import Later, Readback
from virtualflow.train.reduction import Measured, Reduction
from virtualflow.train.sums import Sums


class ExactReduction(Reduction):
    """The same bits for any mapping."""

    normalises = False

    def __init__(self, parameters: dict[str, nn.Parameter], buffers: Buffers, virtual_nodes: int) -> None:
        self.gradient_sums = Sums(virtual_nodes, exact=True)
        self._buckets = Buckets([], self._launch)
        super().__init__(parameters, buffers, virtual_nodes)

    def watch_sums(self) -> SumChecksums:
        """From now on, keep the checksums of all sums."""
        self.checksums = SumChecksums()
        self.gradient_sums.node_checksums = self.checksums.gradients
        self.buffer_sums.watch(self.checksums)
        return self.checksums

    def begin(self, group: Group | None, waves: Sequence[int] = ()) -> None:
        super().begin(group, waves)
        self._buckets.restart()  # what it has sent holds the memory of the sums
        if self.gradient_sums.begin():
            sizes = [8 * self.parameters[index].numel() for index in self.gradient_sums.order]
            self._buckets = Buckets(cut(sizes), self._launch)

    def begin_node(self, *, last: bool) -> None:
        super().begin_node(last=last)
        self.gradient_sums.begin_node()

    @property
    def grids(self) -> dict[str, dict[str, int]]:
        return {**super().grids, "gradients": self.gradient_sums.grids_by_name()}

    @grids.setter
    def grids(self, exponents: dict[str, dict[str, int]]) -> None:
        self.buffer_sums.grids = exponents.get("buffers", {})
        self.gradient_sums.set_grids(exponents.get("gradients", {}))

    def _adopted(self, parameters: dict[str, nn.Parameter]) -> None:
        self.gradient_sums.adopt(parameters)

    def _launch(self, bucket: range) -> Work:
        assert self._group is not None
        sums = self.gradient_sums.complete(bucket)
        faults.expose("sums", [sums])
        if self.checksums is not None and self.checksums.are_taken:
            self.checksums.sent += self.gradient_sums.checksums(bucket)
        work = self._group.sum(sums)
        faults.reach("bucket")
        return work

    def _take(self, index: int, gradient: Tensor) -> None:
        # Summed while it is still in the cache, and freed: there is never a whole set of gradients beside the sums.
        self.parameters[index].grad = None
        self.gradient_sums.add(index, gradient, self._factor)
        slot = self.gradient_sums.slot(index)
        if self._sending and slot is not None:
            self._buckets.ready(slot)

    def _flush_gradients(self) -> None:
        self._buckets.flush()
        every = range(len(self.gradient_sums.order))
        if every:
            faults.expose("received buckets", [self.gradient_sums.buffer])
        if self.checksums is not None and self.checksums.are_taken:
            self.checksums.arrived += self.gradient_sums.checksums(every)

    def measure(self, readback: Readback) -> Later[Measured]:
        gradients, buffers = self.gradient_sums.peaks(readback), self.buffer_sums.peaks(readback)
        unclean = self.gradient_sums.unclean(readback)
        return lambda: Measured(gradients() + buffers(), unclean())

    def divide(self, weight: float) -> Tensor:
        squares = self.gradient_sums.divide(weight, squares=True)
        assert squares is not None
        return squares

    def norm(self, squares: float) -> float:
        return self.gradient_sums.norm(squares)

    def _accept_gradients(self, peaks: list[int]) -> bool:
        return self.gradient_sums.accept(peaks)

    def _finish_gradients(self, peaks: list[int]) -> None:
        for index, (parameter, bits) in enumerate(zip(self.parameters, peaks, strict=True)):
            # A global fact: a gradient that is None here and zero there would make weight decay differ by mapping.
            parameter.grad = self.gradient_sums.result(index) if bits >= 0 else None
        self.gradient_sums.commit(peaks)
