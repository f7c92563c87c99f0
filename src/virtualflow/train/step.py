"""One step: every virtual node of this worker in turn, one reduction, one update. Replayable as a whole."""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from virtualflow.core import faults
from virtualflow.core.seeds import derive
from virtualflow.core.sharding import GlobalBatch
from virtualflow.errors import ConfigError, DeviceMemoryError, HiddenStateError, LossError, NonFiniteError
from virtualflow.train.audit import Audit
from virtualflow.train.data import Feed, Request, Shard
from virtualflow.train.loss import Loss, read_loss
from virtualflow.train.pace import Pace
from virtualflow.train.peers import Peers
from virtualflow.train.reduction import Reduction
from virtualflow.train.scalars import NodeScalars, StepScalars, read_scalars, reduce_scalars
from virtualflow.train.seeding import reseed
from virtualflow.train.state import Buffers

LossFn = Callable[[nn.Module, Any], Any]
MAX_ATTEMPTS = 4  # one to measure, one to move the grids, and two that can only mean a loss that is not replayable


@dataclass(frozen=True, slots=True)
class StepSettings:
    """What decides a step's result, besides the state it starts from."""

    loss_fn: LossFn
    seed: int
    virtual_nodes: int
    clip_grad_norm: float | None = None
    on_nan: str = "raise"
    mixed: bool = False  # device types, whose kernels round differently: scalars are computed once


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a committed step leaves behind for its caller and for the certificate."""

    loss: float
    gradient_norm: float | None
    ids: tuple[int, ...]
    attempts: int
    accumulator: str | None


class StepRunner:
    """Runs steps on one worker, together with its peers."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        reduction: Reduction,
        buffers: Buffers,
        settings: StepSettings,
        grad_scaler: torch.amp.GradScaler | None,
        peers: Peers,
        audit: Audit | None,
        pace: Pace,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._parameters = list(model.parameters())
        self._reduction = reduction
        self._buffers = buffers
        self._settings = settings
        self._scaler = grad_scaler
        self._peers = peers
        self._audit = audit
        self._pace = pace

    def run(self, batch: GlobalBatch, global_step: int, feed: Feed) -> StepResult:
        """Run one step on *batch*, together with the other workers."""
        self._buffers.hold()
        self._pace.begin_step()
        for attempt in range(MAX_ATTEMPTS):
            attempt_at = _Attempt(batch, global_step, attempt)
            packed = self._peers.agree(lambda: self._attempt(attempt_at, feed))  # noqa: B023  (called at once)
            faults.reach("after the scalars")
            scalars = read_scalars(packed, self._settings.virtual_nodes)
            if self._reduction.accept(scalars.peaks):
                break
        else:
            raise HiddenStateError(
                f"step {global_step} gave other gradients on each of {MAX_ATTEMPTS} attempts. Something in the model "
                "or loss_fn keeps state between calls; `vf run --audit` finds out what."
            )
        return self._commit(attempt_at, scalars)

    def abandon(self) -> None:
        """Undo what an unfinished attempt has left: only committed steps count."""
        self._buffers.compare()
        self._buffers.restore()

    def _attempt(self, attempt: _Attempt, feed: Feed) -> Tensor:
        batch = attempt.batch
        self.abandon()  # the last attempt may have ended in the middle of a virtual node
        # Compared while the waves run, before anything is reduced: no extra round trip.
        calls = self._peers.announce("step", attempt.global_step, derive(0, batch.epoch, batch.step, batch.order))
        busy = [node for node in self._peers.nodes if len(batch.shards[node])]
        if self._audit is not None and attempt.number == 0:
            self._rehearse(attempt, busy, feed)
        self._reduction.begin(self._peers.group)
        mine: dict[int, NodeScalars] = {}
        for node in busy:
            mine[node] = self._run_node(attempt, node, feed, calls.check if node == busy[-1] else None)
        if not busy:
            calls.check()
        self._reduction.flush()
        faults.reach("before the scalars")
        # Last, and only by a worker that holds all sums: whoever completes this knows that everyone holds them.
        return reduce_scalars(mine, self._reduction.peaks(), self._settings.virtual_nodes, self._peers.group)

    def _rehearse(self, attempt: _Attempt, busy: Sequence[int], feed: Feed) -> None:
        """Run the virtual nodes once in another order, for the audit to compare."""
        assert self._audit is not None
        self._reduction.begin(self._peers.group)
        self._audit.rehearsal()
        for node in reversed(busy):
            self._run_node(attempt, node, feed, None)
        self._audit.performance()

    def _run_node(
        self, attempt: _Attempt, node: int, feed: Feed, before_sending: Callable[[], None] | None
    ) -> NodeScalars:
        self._pace.begin()
        shard = feed.take(attempt.request(node))
        self._buffers.restore()
        reseed(derive(self._settings.seed, "node", attempt.global_step, node))
        self._reduction.begin_node(last=before_sending is not None)
        if self._audit is not None:
            self._audit.begin_node(self._reduction, attempt.global_step, node)
        try:
            faults.reach("forward")
            loss = self._forward(shard, attempt.global_step)
            if before_sending is not None:
                asked = time.perf_counter()
                before_sending()
                self._pace.excuse(time.perf_counter() - asked)
            self._backward(loss, shard, attempt.batch.examples)
        except (MemoryError, RuntimeError, ValueError) as error:
            if (advice := _lone_example_advice(node, shard.examples, attempt.global_step, error)) is not None:
                raise ConfigError(advice) from error
            if is_out_of_memory(error):
                raise DeviceMemoryError(_memory_advice(node, shard.examples, attempt.global_step, error)) from error
            raise
        self._buffers.compare()
        integers = self._buffers.integers()
        unclean = self._reduction.end_node(shard.examples)
        self._pace.end_wave(shard.examples, attempt.global_step)
        total = float(loss.total.detach()) * (shard.examples if loss.is_mean else 1)
        return NodeScalars(total, loss.weight, shard.ids, integers, unclean, loss.is_mean)

    def _forward(self, shard: Shard, global_step: int) -> Loss:
        versions = [parameter._version for parameter in self._parameters]
        loss = read_loss(self._settings.loss_fn(self._model, shard.batch), shard.examples)
        if versions != [parameter._version for parameter in self._parameters]:
            changed = [
                name
                for (name, parameter), version in zip(self._model.named_parameters(), versions, strict=True)
                if parameter._version != version
            ]
            raise HiddenStateError(
                f"the forward of step {global_step} wrote to the parameter(s) {', '.join(changed)}: virtual nodes "
                "that run later would start from another model. Initialise parameters before the Trainer is made, "
                "and keep running values in buffers."
            )
        return loss

    def _backward(self, loss: Loss, shard: Shard, examples: int) -> None:
        if not loss.is_mean:
            weighted = loss.total
        elif self._reduction.normalises:
            weighted = loss.total * (shard.examples / examples)
        else:
            weighted = loss.total * shard.examples
        (self._scaler.scale(weighted) if self._scaler is not None else weighted).backward()

    def _commit(self, attempt: _Attempt, scalars: StepScalars) -> StepResult:
        self._check(attempt.global_step, scalars)
        self._buffers.restore()
        accumulator = self._audit.hash_accumulator(self._reduction) if self._audit is not None else None
        means = all(node.is_mean for node in scalars.nodes.values())
        weight = 1.0 if means and self._reduction.normalises else scalars.weight
        norm = self._reduction.finish(scalars.peaks, weight, attempt.batch.examples)
        if self._settings.mixed and norm is not None:
            norm = self._leads(norm, attempt.global_step)
        seed = self._settings.seed
        reseed(derive(seed, "update", attempt.global_step))  # some optimizers draw noise
        faults.reach("optimizer")
        self._pace.begin()
        norm = self._update(norm)
        self._pace.end_update(len(self._peers.membership.devices))
        faults.reach("after the commit")
        reseed(derive(seed, "after", attempt.global_step))
        ids = tuple(node.ids for node in scalars.nodes.values())
        return StepResult(scalars.total / scalars.weight, norm, ids, attempt.number + 1, accumulator)

    def _leads(self, value: float, global_step: int) -> float:
        """The lead's *value*, to the bit."""
        bits = int.from_bytes(struct.pack("<d", value), "little", signed=True)
        shared = self._peers.from_lead("step", global_step, lambda: bits)
        return float(struct.unpack("<d", shared.to_bytes(8, "little", signed=True))[0])

    def _update(self, norm: float | None) -> float | None:
        limit = self._settings.clip_grad_norm
        if self._scaler is not None:
            scale = self._scaler.get_scale()
            self._scaler.unscale_(self._optimizer)
            norm = None if norm is None else norm / scale
        if limit is not None:
            norm = _clip(self._parameters, limit, norm)
        if self._scaler is not None:
            self._scaler.step(self._optimizer)
            self._scaler.update()
        else:
            self._optimizer.step()
        return norm

    def _check(self, global_step: int, scalars: StepScalars) -> None:
        if scalars.weight == 0:
            raise LossError(
                f"the weights of step {global_step} add up to 0, so there is no mean to take. Does loss_fn mask out "
                "every token of the batch?"
            )
        first, *others = scalars.nodes.items()
        for node, report in others:
            if report.integers != first[1].integers:
                raise HiddenStateError(self._integer_advice(global_step, first[0], node))
            if report.is_mean != first[1].is_mean:
                raise LossError(
                    f"in step {global_step}, loss_fn returned a mean for one of virtual nodes {first[0]} and {node} "
                    "and (total, weight) for the other. It must always return the same kind."
                )
        if self._settings.on_nan == "raise" and self._scaler is None:
            for node, report in scalars.nodes.items():
                self._check_finite(global_step, node, report)

    def _check_finite(self, global_step: int, node: int, report: NodeScalars) -> None:
        if math.isfinite(report.total) and not report.unclean:
            return
        what = (
            f"the gradient of {self._reduction.names[report.unclean - 1]!r} has values that are not finite"
            if math.isfinite(report.total)
            else f"the loss is {report.total}"
        )
        raise NonFiniteError(
            f"in step {global_step}, virtual node {node}, {what}. The model was not updated. Look at that shard, lower "
            'the learning rate, or set clip_grad_norm; on_nan="continue" trains on regardless.'
        )

    def _integer_advice(self, global_step: int, one: int, other: int) -> str:
        names = [self._buffers.all[i].name for i in self._buffers.changed if not self._is_float(i)]
        return (
            f"in step {global_step}, virtual nodes {one} and {other} left different values in an integer buffer "
            f"({', '.join(names) or 'of another worker'}). Virtual nodes run as if at the same time, so an integer "
            "can't be averaged: make it depend on the step alone, or use a floating point buffer."
        )

    def _is_float(self, index: int) -> bool:
        return self._buffers.all[index].tensor.is_floating_point()


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One try at a step; a replay is another."""

    batch: GlobalBatch
    global_step: int
    number: int

    def request(self, node: int) -> Request:
        return Request(self.batch.epoch, self.batch.step, node, self.number, self.batch.shards[node])


def _clip(parameters: Sequence[nn.Parameter], limit: float, norm: float | None) -> float:
    gradients: list[Tensor] = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if norm is None:
        norm = float(torch.nn.utils.get_total_norm(gradients))
    factor = limit / (norm + 1e-6)
    if gradients and not factor >= 1.0:
        torch._foreach_mul_(gradients, factor)
    return norm


def is_out_of_memory(error: BaseException) -> bool:
    """Whether *error* means that memory has run out, on a CPU or an accelerator."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return "can't allocate memory" in str(error) or "out of memory" in str(error)


def _lone_example_advice(node: int, examples: int, global_step: int, error: BaseException) -> str | None:
    """What to do about batch norm's refusal of a shard without a variance, if *error* is that."""
    if examples != 1 or "more than 1 value per channel" not in str(error):
        return None
    return (
        f"in step {global_step}, virtual node {node} has one example only, and batch norm can't take a variance of "
        "it. If that is what is left over at the end of an epoch: drop_last=True, or another batch_size. If every node "
        "has one example: fewer virtual nodes, or a larger batch."
    )


def _memory_advice(node: int, examples: int, global_step: int, error: BaseException) -> str:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return (
        f"out of memory in step {global_step}, virtual node {node} with {examples} example(s): {reason}. A device "
        "holds one virtual node at a time, so more virtual nodes (smaller ones) need less memory for the same batch."
    )
