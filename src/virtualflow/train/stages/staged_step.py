"""One step of a model that is cut into stages: cells in the order of the schedule, sums by unit, one update each.

Whoever completes the last collective knows that every holder of every unit has its finished gradients: the update is
local, and a worker that is lost after it takes nothing along that no other has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from virtualflow.core import faults
from virtualflow.core.cell_schedule import orders
from virtualflow.core.seeds import derive
from virtualflow.core.sharding import GlobalBatch
from virtualflow.errors import ConfigError, HiddenStateError, LossError, NonFiniteError
from virtualflow.train.attempt import Attempt
from virtualflow.train.data import Feed
from virtualflow.train.pace import Pace
from virtualflow.train.peers import Peers
from virtualflow.train.readback import Later, Readback
from virtualflow.train.replay import Replays
from virtualflow.train.scalars import (
    NodeScalars,
    StepScalars,
    bits_float,
    float_bits,
    read_scalars,
    reduce_scalars,
)
from virtualflow.train.seeding import check_settings, reseed
from virtualflow.train.stages.cell_runs import CellResults, CellRunner
from virtualflow.train.stages.crossings import Crossings, MessageSizes
from virtualflow.train.stages.job_optimizer import JobOptimizer
from virtualflow.train.stages.loss_scale import LossScale
from virtualflow.train.stages.stage_sizes import stage_sizes
from virtualflow.train.stages.staged_state import StagedState
from virtualflow.train.stages.unit_sums import FIRST_TAG, add_over_devices
from virtualflow.train.state import Parts
from virtualflow.train.step import MAX_ATTEMPTS, StepResult
from virtualflow.train.step_metrics import MetricNames

_SHADOW_TAG = FIRST_TAG << 1
_NONE = -(2**63)
_FIELDS = 2  # of each cell: its integer buffers, and its first gradient that is not finite


@dataclass(frozen=True, slots=True)
class StagedSettings:
    """What decides a step's result, besides the state it starts from, and how it runs."""

    seed: int
    virtual_nodes: int
    trainer: int
    clip_grad_norm: float | None
    on_nan: str
    schedule: str


@dataclass(frozen=True, slots=True)
class _Agreed:
    """What all workers know after an attempt."""

    scalars: StepScalars
    integers: list[list[int]]  # by stage and virtual node
    unclean: list[list[int]]
    peaks: list[int]
    squares: list[float] | None  # of each unit's gradient; None if the step is to be replayed


class StagedRunner:
    """Makes the steps of one worker, together with its peers."""

    def __init__(
        self,
        state: StagedState,
        cells: CellRunner,
        optimizer: JobOptimizer,
        loss_scale: LossScale,
        pace: Pace,
        settings: StagedSettings,
        peers: Peers,
        metric_names: MetricNames,
        parts: Parts,
    ) -> None:
        self._state = state
        self._cells = cells
        self._optimizer = optimizer
        self._loss_scale = loss_scale
        self._pace = pace
        self._settings = settings
        self._peers = peers
        self._metric_names = metric_names
        self._replays = Replays(parts)
        self._sizes = MessageSizes()
        self._sizes_of = -1  # the generation whose workers know them
        self._adopted: dict[int, nn.Module] | None = None  # the modules whose gradients are taken in
        self._measured: dict[int, nn.Module] | None = None  # the modules whose memory is known
        self._new_buffers: dict[str, Tensor] = {}  # of the last accepted attempt, by their names

    def run(self, batch: GlobalBatch, global_step: int, feed: Feed, *, update: bool = True) -> StepResult:
        """Make one step on *batch*, together with the other workers."""
        if not update:
            raise ConfigError("a Trainer with stages updates the model itself: no other loop can have its gradients.")
        check_settings()
        self._replays.forget()
        self._pace.begin_step()
        for number in range(MAX_ATTEMPTS):
            attempt = Attempt(batch, global_step, number)
            agreed = self._read(self._peers.agree(lambda: self._attempt(attempt, feed)))  # noqa: B023  (at once)
            self._sizes.all_know()
            faults.reach("after the scalars")
            self._replays.compare(global_step, agreed.scalars)
            if agreed.squares is not None:
                self._check(global_step, agreed)
                return self._commit(attempt, agreed, agreed.squares)
            if any(report.unnamed for report in agreed.scalars.nodes.values()):
                unknown = sorted((metric.name, metric.is_mean) for metric in self._metric_names.unknown)
                self._metric_names.add(self._peers.exchanged("step", global_step, unknown))
            self._state.sums.move_grids(agreed.peaks)
        raise HiddenStateError(
            f"step {global_step} gave other gradients on each of {MAX_ATTEMPTS} attempts. Something in a stage or in "
            "loss_fn keeps state between calls."
        )

    def _attempt(self, attempt: Attempt, feed: Feed) -> Tensor:
        state, group, batch = self._state, self._peers.group, attempt.batch
        where = (self._settings.trainer, batch.epoch, batch.step, batch.order)
        self._peers.announce("step", attempt.global_step, derive(0, *where)).check()
        state.settle()
        if self._sizes_of != (generation := self._peers.membership.generation):
            self._sizes.forget()
            self._sizes_of = generation
        if self._adopted is not state.held.modules:
            self._cells.adopt()
            self._adopted = state.held.modules
        self._metric_names.unknown = set()
        cells, device = state.cells, self._peers.membership.device
        for sums in state.sums.units:
            sums.runs_here = device in sums.unit.runners(cells)
            if sums.runs_here:
                sums.begin()
        busy = [node for node, shard in enumerate(batch.shards) if len(shard)]
        order = orders(cells, self._settings.schedule, busy).get(device, [])
        crossings = Crossings(group, cells.virtual_nodes, state.device, self._sizes)
        results = self._cells.run(attempt, order, cells, device, crossings, feed, state.rank_of)
        faults.reach("bucket")
        units = [
            (number, sums, [state.rank_of(runner) for runner in sums.unit.runners(cells)])
            for number, sums in enumerate(state.sums.units)
        ]
        add_over_devices(units, group)
        faults.reach("before the scalars")
        packed = self._reduced(results)
        agreed = self._read(torch.cat([torch.zeros(1, dtype=torch.int64), packed]))
        if agreed.scalars.weight == 0:
            raise LossError(
                f"the weights of step {attempt.global_step} add up to 0, so there is no mean to take. Does loss_fn "
                "mask out every token of the batch?"
            )
        unnamed = any(report.unnamed for report in agreed.scalars.nodes.values())
        if unnamed or not state.sums.fit(agreed.peaks):
            return torch.cat([torch.zeros(1, dtype=torch.int64), packed])
        squares = self._finished(agreed, batch.examples)
        faults.reach("before the squares")
        if group is not None:
            group.max(squares).wait()
        return torch.cat([torch.ones(1, dtype=torch.int64), packed, squares])

    def _reduced(self, results: CellResults) -> Tensor:
        """The scalars of all workers' cells."""
        readback = Readback()
        later = {}
        for node, (loss, _) in results.losses.items():
            weight = readback.number(loss.weight) if isinstance(loss.weight, Tensor) else _known(loss.weight)
            metrics = {report.metric.name: report.later(readback) for report in loss.metrics}
            later[node] = (readback.number(loss.total), weight, metrics)
        readback.read()
        mine = {}
        for node, (loss, shard) in results.losses.items():
            total, weight, metrics = later[node]
            mine[node] = NodeScalars(
                total() * (shard.examples if loss.is_mean else 1),
                weight(),
                shard.ids,
                integers=0,
                unclean=0,
                is_mean=loss.is_mean,
                unnamed=self._metric_names.note(loss.metrics),
                metrics={name: numbers() for name, numbers in metrics.items()},
            )
        state, nodes = self._state, self._settings.virtual_nodes
        slots = [_NONE] * (_FIELDS * state.cut.count * nodes)
        for (stage, node), integers in results.integers.items():
            at = _FIELDS * (stage * nodes + node)
            slots[at : at + 2] = [integers, 0]
        for sums in state.sums.units:
            for run, name in sums.unclean():
                slots[_FIELDS * (run.stage * nodes + run.node) + 1] = 1 + state.sums.names.index(name)
        return reduce_scalars(mine, slots + state.sums.peaks(), nodes, self._names, self._peers.group)

    def _read(self, packed: Tensor) -> _Agreed:
        state, nodes = self._state, self._settings.virtual_nodes
        units = len(state.sums.units)
        accepted = int(packed[0]) == 1
        body = packed[1:-units] if accepted else packed[1:]
        scalars = read_scalars(body, nodes, self._names)
        count = _FIELDS * state.cut.count * nodes
        slots, peaks = scalars.peaks[:count], scalars.peaks[count:]
        by_cell = [slots[at : at + _FIELDS] for at in range(0, count, _FIELDS)]
        rows = [by_cell[stage * nodes : (stage + 1) * nodes] for stage in range(state.cut.count)]
        squares = [bits_float(bits) for bits in packed[-units:].tolist()] if accepted else None
        return _Agreed(
            scalars,
            [[cell[0] for cell in row] for row in rows],
            [[cell[1] for cell in row] for row in rows],
            peaks,
            squares,
        )

    def _finished(self, agreed: _Agreed, examples: int) -> Tensor:
        """Divide the sums, give the results to those who hold a unit and run none of it; return squares as bits."""
        state, device = self._state, self._peers.membership.device
        squares = torch.full((len(state.sums.units),), _NONE, dtype=torch.int64)
        self._new_buffers = {}
        for number, (sums, gradients, buffers) in enumerate(state.sums.by_unit(agreed.peaks)):
            unit, results = sums.unit, list[Tensor]()
            if not sums.runs_here and unit not in state.held.units:
                continue
            if sums.runs_here:
                total = sums.gradients.divide(agreed.scalars.weight, squares=True)
                assert total is not None
                squares[number] = float_bits(float(total))
                sums.buffers.divide(float(examples))
            for index, name in enumerate(unit.parameters):
                parameter = state.held.parameters[name]
                parameter.grad = None
                if gradients[index] >= 0:
                    parameter.grad = sums.gradients.result(index) if sums.runs_here else torch.empty_like(parameter)
                    results.append(parameter.grad)
            for index, name in enumerate(unit.buffers):
                if buffers[index] >= 0:
                    start = state.held.buffers[name]
                    new = _moved(start, sums.buffers.result(index)) if sums.runs_here else torch.empty_like(start)
                    self._new_buffers[name] = new
                    results.append(new)
            self._give_to_shadows(unit.runners(state.cells), unit.holders(state.cells), results, device)
        return squares

    def _give_to_shadows(self, runners: list[str], holders: list[str], results: list[Tensor], device: str) -> None:
        group, shadows = self._peers.group, [holder for holder in holders if holder not in runners]
        if group is None or not shadows or device not in (runners[0], *shadows):
            return
        faults.reach("shadow")
        works = []
        for result in results:
            flat = result.as_strided((result.numel(),), (1,), result.storage_offset())
            if device == runners[0]:
                works += [group.send(flat, self._state.rank_of(shadow), _SHADOW_TAG) for shadow in shadows]
            else:
                works.append(group.receive(flat, self._state.rank_of(runners[0]), _SHADOW_TAG))
        for work in works:
            work.wait()

    def _check(self, global_step: int, agreed: _Agreed) -> None:
        """Refuse a step whose virtual nodes contradict each other, or that is not finite."""
        kinds = {report.is_mean for report in agreed.scalars.nodes.values()}
        if len(kinds) > 1:
            raise LossError(
                f"in step {global_step}, loss_fn returned a mean for one virtual node and (total, weight) for another. "
                "It must always return the same kind."
            )
        for stage, row in enumerate(agreed.integers):
            if len({integers for integers in row if integers != _NONE}) > 1:
                raise HiddenStateError(
                    f"in step {global_step}, virtual nodes left different values in integers of stage {stage}; "
                    "they run as if at the same time, so an integer has no mean. Make it depend on the step alone, or "
                    "use a floating point buffer."
                )
        if self._settings.on_nan != "raise" or self._loss_scale.is_given:
            return
        advice = "The model was not updated. Lower the learning rate, or set clip_grad_norm."
        for node, report in agreed.scalars.nodes.items():
            if not math.isfinite(report.total):
                raise NonFiniteError(
                    f"in step {global_step}, virtual node {node}, the loss is {report.total}. {advice}"
                )
        for stage, row in enumerate(agreed.unclean):
            for node, place in enumerate(row):
                if place > 0:
                    name = self._state.sums.names[place - 1]
                    raise NonFiniteError(
                        f"in step {global_step}, virtual node {node}, stage {stage}, the gradient of {name!r} has "
                        f"values that are not finite. {advice}"
                    )

    def _commit(self, attempt: Attempt, agreed: _Agreed, squares: Sequence[float]) -> StepResult:
        state, limit = self._state, self._settings.clip_grad_norm
        scale = self._loss_scale.now
        norm = math.sqrt(sum(squares)) / scale
        factor = limit / (norm + 1e-6) if limit is not None else 1.0
        is_left_out, changes = self._loss_scale.is_overflow(norm), self._optimizer.changes()
        faults.reach("optimizer")
        for unit in state.held.units:
            if self._peers.membership.device not in unit.runners(state.cells):
                faults.reach("shadow's update")
            self._pace.begin_cell()
            parameters = [state.held.parameters[name] for name in unit.parameters]
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            if gradients and scale != 1.0:
                torch._foreach_mul_(gradients, 1.0 / scale)
            if gradients and not factor >= 1.0:
                torch._foreach_mul_(gradients, factor)
            reseed(derive(self._settings.seed, "update", attempt.global_step, *unit.stages))
            if not is_left_out:
                state.held.update(unit, changes)
            for parameter in parameters:
                parameter.grad = None
            for name in unit.buffers:
                if name in self._new_buffers:
                    state.held.buffers[name].copy_(self._new_buffers[name])
            self._pace.end_unit(unit.stages, state.cut.count)
        if not is_left_out:
            self._optimizer.stepped()
        self._loss_scale.update(overflowed=is_left_out)
        state.sums.commit(agreed.peaks)
        state.committed()
        if self._settings.trainer == 1 and self._measured is not state.held.modules:
            self._measured, self._peers.membership.stage_sizes = state.held.modules, stage_sizes(state.held)
        faults.reach("after the commit")
        reports = agreed.scalars.nodes.values()
        return StepResult(
            agreed.scalars.total / agreed.scalars.weight,
            norm,
            tuple(report.ids for report in reports),
            attempt.number + 1,
            None,
            self._metric_names.combined(report.metrics for report in reports),
        )

    @property
    def _names(self) -> list[str]:
        return [metric.name for metric in self._metric_names.known]


def _known(value: float) -> Later[float]:
    return lambda: value


def _moved(start: Tensor, change: Tensor) -> Tensor:
    """A buffer after the step: its start, and the mean of how far virtual nodes have moved it."""
    if start.is_floating_point():
        return start + change.to(start.dtype)
    return (start.to(torch.int64) + change).to(start.dtype)
