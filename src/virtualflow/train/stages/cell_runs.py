"""Running cells: the forward and the backward of one stage for one virtual node, in the order of the schedule."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from virtualflow.core import faults
from virtualflow.core.cell_schedule import BACKWARD, FORWARD, CellRun
from virtualflow.core.cells import Cell, Cells
from virtualflow.core.mapping import DeviceId
from virtualflow.core.seeds import derive
from virtualflow.errors import LossError
from virtualflow.train.attempt import Attempt
from virtualflow.train.data import Feed, Shard
from virtualflow.train.loss import NodeLoss, check_rows, read_loss
from virtualflow.train.pace import Pace
from virtualflow.train.reduction import sparse_reason
from virtualflow.train.seeding import reseed
from virtualflow.train.stages.crossings import Crossing, Crossings, crossing, outputs_of
from virtualflow.train.stages.held_stages import HeldStages
from virtualflow.train.stages.lent_batch import lent
from virtualflow.train.stages.loss_scale import LossScale
from virtualflow.train.stages.stage_cut import Cut
from virtualflow.train.stages.unit_sums import JobSums
from virtualflow.train.state import checksum

StageLoss = Callable[[Any, Any], Any]  # of the last stage's output and the batch


@dataclass(slots=True)
class CellResults:
    """What the cells of one attempt have left on this worker."""

    losses: dict[int, tuple[NodeLoss, Shard]] = field(default_factory=dict)  # by virtual node, of the last stage
    integers: dict[Cell, int] = field(default_factory=dict)  # of each cell a number for its integer buffers


@dataclass(frozen=True, slots=True)
class _Kept:
    """What a backward needs of its forward; the graph is None if the forward is to run again."""

    inputs: list[Tensor] | None
    outputs: list[Tensor] | None


class CellRunner:
    """Runs the cells of this worker."""

    def __init__(
        self,
        cut: Cut,
        held: HeldStages,
        sums: JobSums,
        loss_fn: StageLoss,
        loss_scale: LossScale,
        pace: Pace,
        seed: int,
        *,
        recompute: bool,
    ) -> None:
        self._cut = cut
        self._held = held
        self._sums = sums
        self._loss_fn = loss_fn
        self._loss_scale = loss_scale
        self._pace = pace
        self._seed = seed
        self._recompute = recompute
        self._hooks: list[RemovableHandle] = []
        self._kept: dict[Cell, _Kept] = {}
        self._here: dict[CellRun, Crossing] = {}  # what stays on this device between two stages
        self._shards: dict[int, Shard] = {}

    def adopt(self) -> None:
        """The stages that are held are others than before: take in the gradients of their weights."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = [
            leaf.register_post_accumulate_grad_hook(self._arrival(home))
            for stage in self._held.modules
            for home, leaf in self._held.leaves(stage)
            if leaf.requires_grad
        ]

    def run(
        self,
        attempt: Attempt,
        order: list[CellRun],
        cells: Cells,
        device: DeviceId,
        crossings: Crossings,
        feed: Feed,
        rank_of: Callable[[DeviceId], int],
    ) -> CellResults:
        """Run the cells in *order*, and return what they leave besides sums."""
        self._attempt, self._feed, self._crossings, self._results = attempt, feed, crossings, CellResults()
        self._kept, self._here, self._shards = {}, {}, {}
        self._grid, self._device, self._rank_of = cells, device, rank_of
        left = {node: sum(run.node == node for run in order) for node in {run.node for run in order}}
        for run in order:
            if (source := self._neighbour(run)) is not None and source != device:
                crossings.expect(run, rank_of(source))
        for run in order:
            (self._forward if run.direction == FORWARD else self._backward)(run)
            left[run.node] -= 1
            if not left[run.node]:
                self._shards.pop(run.node, None)
        crossings.finish()
        return self._results

    def _neighbour(self, run: CellRun) -> DeviceId | None:
        """The device from which *run* gets what it needs, if it needs anything."""
        stage = run.stage - 1 if run.direction == FORWARD else run.stage + 1
        return self._grid.routes[run.node][stage] if 0 <= stage < self._cut.count else None

    def _obtained(self, run: CellRun) -> Crossing | None:
        source = self._neighbour(run)
        if source is None:
            return None
        if source == self._device:
            return self._here.pop(run)
        faults.reach("receive activations" if run.direction == FORWARD else "receive gradients")
        obtained = self._crossings.obtain(run)
        if run.direction == BACKWARD:  # whoever sends the gradient has used the activations
            self._crossings.arrived(CellRun(FORWARD, run.stage + 1, run.node))
        return obtained

    def _hand_on(self, tensors: Crossing, run: CellRun) -> None:
        """Give *tensors* to whoever makes *run*."""
        to = self._grid.routes[run.node][run.stage]
        if to == self._device:
            self._here[run] = tensors
        else:
            faults.reach("send activations" if run.direction == FORWARD else "send gradients")
            self._crossings.ship(tensors, run, self._rank_of(to))

    def _forward(self, run: CellRun) -> None:
        faults.reach("forward")
        stage, last = run.stage, run.stage == self._cut.count - 1
        inputs = self._inputs(self._obtained(run))
        self._pace.begin_cell()
        recompute = self._recompute and not last
        with torch.no_grad() if recompute else torch.enable_grad():
            output = self._output(run, inputs)
        self._take_buffers(run)
        if last:
            self._kept[stage, run.node] = _Kept(inputs, [self._total(run, output)])
            self._end(run)
            return
        outputs = outputs_of(output, stage)
        self._kept[stage, run.node] = _Kept(inputs, None if recompute else outputs)
        self._end(run)
        self._hand_on([crossing(tensor) for tensor in outputs], CellRun(FORWARD, stage + 1, run.node))

    def _end(self, run: CellRun) -> None:
        """*run* has computed what it hands on."""
        attempt = self._attempt
        self._pace.end_cell(run, self._cut.count, len(attempt.batch.shards[run.node]), attempt.global_step)

    def _output(self, run: CellRun, inputs: list[Tensor] | None) -> Any:
        """The output of a cell, from the buffers at the step's start and the cell's own seed."""
        self._held.renew_buffers(run.stage)
        x = None if inputs is None else inputs[0] if len(inputs) == 1 else tuple(inputs)
        shared = self._shard(run.node).batch if self._cut.loads(run.stage) else None
        reseed(derive(self._seed, "cell", self._attempt.global_step, run.node, run.stage))
        with lent(shared, f"stage {run.stage}") as batch:
            return self._cut.call(run.stage, self._held.modules[run.stage], x, batch)

    def _total(self, run: CellRun, output: Any) -> Tensor:
        """The loss of a virtual node, summed over its weight; its gradient is that of the whole node."""
        shard = self._shard(run.node)
        # Nobody reads the batch after loss_fn, unless forwards run once more.
        with lent(shard.batch, "loss_fn") if self._recompute else nullcontext(shard.batch) as batch:
            loss = read_loss(self._loss_fn(output, batch), shard.examples)
        if loss.total.dtype in (torch.float16, torch.bfloat16):
            raise LossError(
                f"loss_fn returned a loss of type {loss.total.dtype}, in which a sum over examples is rounded. With "
                "stages, compute it in float32: loss_fn=lambda output, batch: ...(output.float(), ...)."
            )
        if loss.is_mean:
            check_rows(shard.batch, shard.examples, drawn=shard.is_drawn)
        self._results.losses[run.node] = (loss, shard)
        return self._loss_scale.scaled(loss.total * float(shard.examples) if loss.is_mean else loss.total)

    def _backward(self, run: CellRun) -> None:
        faults.reach("backward")
        stage, node = run.stage, run.node
        kept, gradients = self._kept.pop((stage, node)), self._obtained(run)
        self._pace.begin_cell()
        outputs = kept.outputs
        if outputs is None:  # once more, from the same seed and buffers; what it makes of them is not taken twice
            outputs = outputs_of(self._output(run, kept.inputs), stage)
        reseed(derive(self._seed, "cell backward", self._attempt.global_step, node, stage))
        for sums in self._sums.of_stage(stage):
            sums.begin_backward(run)
        if gradients is None:
            outputs[0].backward()
        else:
            pairs = [
                (output, gradient)
                for output, gradient in zip(outputs, gradients, strict=True)
                if gradient is not None and output.requires_grad
            ]
            if pairs:
                torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])
        self._end(run)
        if kept.inputs is not None:
            back = [None if tensor.grad is None else crossing(tensor.grad) for tensor in kept.inputs]
            self._hand_on(back, CellRun(BACKWARD, stage - 1, node))

    def _inputs(self, obtained: Crossing | None) -> list[Tensor] | None:
        if obtained is None:
            return None
        return [tensor.requires_grad_(tensor.is_floating_point()) for tensor in obtained if tensor is not None]

    def _shard(self, node: int) -> Shard:
        if node not in self._shards:
            self._shards[node] = self._feed.take(self._attempt.request(node))
        return self._shards[node]

    def _take_buffers(self, run: CellRun) -> None:
        """Add how a forward has changed its buffers, weighed by examples."""
        examples = len(self._attempt.batch.shards[run.node])
        for sums in self._sums.of_stage(run.stage):
            sums.begin_forward()
        own = next((sums for sums in self._sums.units if sums.unit.stages == (run.stage,)), None)
        integers = 0
        for name, now in self._held.buffers_now(run.stage):
            start = self._held.buffers[name]
            if torch.equal(now, start):
                continue
            assert own is not None
            index = own.unit.buffers.index(name)
            if start.is_floating_point():
                own.buffers.add(index, now.detach() - start, examples)
            else:
                own.buffers.add(index, now.to(torch.int64) - start.to(torch.int64), examples)
                integers = derive(integers, name, checksum(now))
        self._results.integers[run.stage, run.node] = integers

    def _arrival(self, home: str) -> Callable[[Tensor], None]:
        (sums,) = [sums for sums in self._sums.units if home in sums.unit.parameters]
        index = sums.unit.parameters.index(home)

        def arrived(leaf: Tensor) -> None:
            gradient = leaf.grad
            assert gradient is not None
            if gradient.is_sparse:
                raise LossError(sparse_reason(home))
            leaf.grad = None
            sums.gradients.add(index, gradient)

        return arrived
