"""Exact sums for each unit of a model that is cut: over its virtual nodes, and over the devices that run its stages.

Every worker knows the grids of all units, since all decide together whether a step is accepted. Sums themselves exist
where a stage of the unit runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from virtualflow.core.cell_schedule import CellRun
from virtualflow.core.membership import Group
from virtualflow.train.readback import Readback
from virtualflow.train.stages.held_stages import HeldStages
from virtualflow.train.stages.stage_cut import Cut, Unit
from virtualflow.train.sums import Sums

FIRST_TAG = 1 << 24  # above those of activations


class UnitSums:
    """The sums of one unit's gradients and of the changes of its buffers."""

    def __init__(self, unit: Unit, shapes: Mapping[str, Tensor], virtual_nodes: int) -> None:
        self.unit = unit
        # Each stage that uses a weight adds to its gradient by itself.
        self.gradients = Sums(virtual_nodes * len(unit.stages), exact=True)
        self.buffers = Sums(virtual_nodes, exact=True)
        self._shapes = shapes
        self._runs: list[CellRun] = []
        self.runs_here = False
        self.adopt({}, {})

    def adopt(self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> None:
        """Sum these from now on; of what is not held here, only the grids are kept."""
        self.gradients.adopt({name: parameters.get(name, self._shapes[name]) for name in self.unit.parameters})
        self.buffers.adopt({name: _carrier(buffers.get(name, self._shapes[name])) for name in self.unit.buffers})

    def begin(self) -> None:
        """Forget all sums: an attempt at a step begins, in which this worker runs a stage of the unit."""
        self._runs = []
        self.gradients.begin()
        self.buffers.begin()

    def begin_forward(self) -> None:
        self.buffers.begin_node()

    def begin_backward(self, run: CellRun) -> None:
        self._runs.append(run)
        self.gradients.begin_node()

    def flats(self) -> list[Tensor]:
        """All sums, as they are added over devices."""
        sums = (self.gradients, self.buffers)
        return [flat for one in sums if len(flat := one.complete(range(len(one.order))))]

    def peaks(self) -> list[int]:
        """The largest addend of each tensor on this worker, as bits, or -1."""
        if not self.runs_here:
            return [-1] * (len(self.unit.parameters) + len(self.unit.buffers))
        readback = Readback()
        gradients, buffers = self.gradients.peaks(readback), self.buffers.peaks(readback)
        readback.read()
        return gradients() + buffers()

    def unclean(self) -> Iterator[tuple[CellRun, str]]:
        """The backwards in which a gradient was not finite, with its name."""
        if self.runs_here and self._runs:
            readback = Readback()
            found = self.gradients.unclean(readback)
            readback.read()
            for run, place in zip(self._runs, found(), strict=True):
                if place:
                    yield run, self.unit.parameters[place - 1]

    def split(self, peaks: Sequence[int]) -> tuple[list[int], list[int]]:
        count = len(self.unit.parameters)
        return list(peaks[:count]), list(peaks[count:])


class JobSums:
    """The sums of all units, by name and in one fixed order: parameters and then buffers of each unit."""

    def __init__(self, cut: Cut, virtual_nodes: int) -> None:
        self.units = [UnitSums(unit, cut.shapes, virtual_nodes) for unit in cut.units]
        self.names = [name for unit in cut.units for name in (*unit.parameters, *unit.buffers)]

    def adopt(self, held: HeldStages) -> None:
        for sums in self.units:
            sums.adopt(held.parameters, held.buffers)

    def of_stage(self, stage: int) -> list[UnitSums]:
        return [sums for sums in self.units if stage in sums.unit.stages]

    def peaks(self) -> list[int]:
        return [peak for sums in self.units for peak in sums.peaks()]

    def by_unit(self, peaks: Sequence[int]) -> Iterator[tuple[UnitSums, list[int], list[int]]]:
        """*peaks* of all tensors, as those of each unit's parameters and buffers."""
        first = 0
        for sums in self.units:
            count = len(sums.unit.parameters) + len(sums.unit.buffers)
            yield sums, *sums.split(peaks[first : first + count])
            first += count

    def fit(self, peaks: Sequence[int]) -> bool:
        """Whether all sums are right, given the *peaks* over all workers."""
        return not any(
            sums.gradients.misfits(one) or sums.buffers.misfits(other) for sums, one, other in self.by_unit(peaks)
        )

    def move_grids(self, peaks: Sequence[int]) -> None:
        """The step is replayed: put the grids where these *peaks* need them."""
        for sums, one, other in self.by_unit(peaks):
            sums.gradients.accept(one)
            sums.buffers.accept(other)

    def commit(self, peaks: Sequence[int]) -> None:
        """Put the grids where the next step is likely to need them."""
        for sums, one, other in self.by_unit(peaks):
            sums.gradients.commit(one)
            sums.buffers.commit(other)

    @property
    def grids(self) -> dict[str, dict[str, int]]:
        """Where the grids lie, by the tensors' names: part of the job's state."""
        grids: dict[str, dict[str, int]] = {"gradients": {}, "buffers": {}}
        for sums in self.units:
            grids["gradients"] |= sums.gradients.grids_by_name()
            grids["buffers"] |= sums.buffers.grids_by_name()
        return grids

    @grids.setter
    def grids(self, exponents: dict[str, dict[str, int]]) -> None:
        for sums in self.units:
            gradients, buffers = exponents.get("gradients", {}), exponents.get("buffers", {})
            sums.gradients.set_grids({name: gradients[name] for name in sums.unit.parameters if name in gradients})
            sums.buffers.set_grids({name: buffers[name] for name in sums.unit.buffers if name in buffers})


def add_over_devices(units: Sequence[tuple[int, UnitSums, list[int]]], group: Group | None) -> None:
    """Add up what several devices have summed of the same unit: its number, its sums, the ranks that have them.

    Each rank collects one part of the sums and gives it to the others. Exact sums need no order.
    """
    shared = [
        (FIRST_TAG + 4 * number + 2 * place, flat, ranks)
        for number, sums, ranks in units
        if group is not None and len(ranks) > 1 and group.rank in ranks
        for place, flat in enumerate(sums.flats())
    ]
    if group is None or not shared:
        return
    collected, sends = [], []
    for tag, flat, ranks in shared:
        mine = _part(flat, ranks.index(group.rank), len(ranks))
        for place, rank in enumerate(ranks):
            if rank != group.rank and len(mine):
                theirs = torch.empty_like(mine)
                collected.append((mine, theirs, group.receive(theirs, rank, tag)))
            if rank != group.rank and len(part := _part(flat, place, len(ranks))):
                sends.append(group.send(part, rank, tag))
    for mine, theirs, work in collected:
        work.wait()
        mine += theirs
    for work in sends:
        work.wait()
    works = []
    for tag, flat, ranks in shared:
        mine = _part(flat, ranks.index(group.rank), len(ranks))
        for place, rank in enumerate(ranks):
            if rank != group.rank and len(part := _part(flat, place, len(ranks))):
                works.append(group.receive(part, rank, tag + 1))
            if rank != group.rank and len(mine):
                works.append(group.send(mine, rank, tag + 1))
    for work in works:
        work.wait()


def _carrier(buffer: Tensor) -> Tensor:
    """A tensor of the form in which changes of *buffer* are summed."""
    return buffer if buffer.is_floating_point() else buffer.to(torch.int64)


def _part(flat: Tensor, place: int, parts: int) -> Tensor:
    size = math.ceil(len(flat) / parts)
    return flat[place * size : (place + 1) * size]
