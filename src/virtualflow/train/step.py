"""One step: every virtual node of this worker in turn, one reduction, one update. Replayable as a whole."""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from virtualflow.core import faults
from virtualflow.core.seeds import derive
from virtualflow.core.sharding import GlobalBatch
from virtualflow.errors import ConfigError, DeviceMemoryError, HiddenStateError, LossError, NonFiniteError
from virtualflow.train.audit import Audit
from virtualflow.train.buffers import Birth, Buffers
from virtualflow.train.bystanders import Bystanders
from virtualflow.train.data import Feed, Request, Shard
from virtualflow.train.loss import Loss, read_loss
from virtualflow.train.pace import Pace
from virtualflow.train.peers import Peers
from virtualflow.train.reduction import Reduction
from virtualflow.train.replay import Replays
from virtualflow.train.scalars import NodeScalars, StepScalars, read_scalars, reduce_scalars
from virtualflow.train.seeding import check_threads, reseed
from virtualflow.train.state import Parts, named_parameters
from virtualflow.train.untouched import Untouched

LossFn = Callable[[nn.Module, Any], Any]
_NON_FINITE_ADVICE = (
    'The model was not updated. Lower the learning rate, or set clip_grad_norm; on_nan="continue" trains on regardless.'
)
MAX_ATTEMPTS = 4  # one to measure, one to move the grids, and two that can only mean a loss that is not replayable


@dataclass(frozen=True, slots=True)
class StepSettings:
    """What decides a step's result, besides the state it starts from."""

    loss_fn: LossFn
    seed: int
    virtual_nodes: int
    trainer: int  # its number in this process
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
        parts: Parts,
        optimizer: torch.optim.Optimizer,
        reduction: Reduction,
        buffers: Buffers,
        settings: StepSettings,
        grad_scaler: torch.amp.GradScaler | None,
        peers: Peers,
        audit: Audit | None,
        pace: Pace,
        bystanders: Bystanders,
    ) -> None:
        self._parts = parts
        self._model = parts.model
        self._optimizer = optimizer
        self._reduction = reduction
        self._buffers = buffers
        self._settings = settings
        self._scaler = grad_scaler
        self._peers = peers
        self._audit = audit
        self._pace = pace
        self._bystanders = bystanders
        self._steps = 0  # that this worker has made
        self._replays = Replays(parts)
        self._must_be_finite = settings.on_nan == "raise" and grad_scaler is None
        reduction.finds_not_finite = self._must_be_finite
        if grad_scaler is not None:
            # It makes its scale when it is first used, which a worker without examples would not do.
            grad_scaler.scale(torch.zeros((), device=next(parts.model.parameters()).device))

    def run(self, batch: GlobalBatch, global_step: int, feed: Feed) -> StepResult:
        """Run one step on *batch*, together with the other workers."""
        if not self._reduction.normalises:
            check_threads()
        self._parameters = named_parameters(self._model)
        self._reduction.adopt(self._parameters)
        if self._buffers.hold():
            self._reduction.buffer_sums.adopt()
        if self._steps == 1:  # later ones are found at the ends of epochs
            self._bystanders.check("it has changed since the first step")
        self._pace.begin_step()
        try:
            attempt, scalars = self._attempts(batch, global_step, feed)
            self._check(global_step, scalars)
            accumulator = self._audit.hash_accumulator(self._reduction) if self._audit is not None else None
            norm = self._finish(attempt, scalars)
        except Exception:
            # Whoever catches this finds the model as it was before the step.
            self.abandon()
            self._reduction.forget()
            raise
        result = self._commit(attempt, scalars, norm, accumulator)
        self._steps += 1
        return result

    def _attempts(self, batch: GlobalBatch, global_step: int, feed: Feed) -> tuple[_Attempt, StepScalars]:
        """Try until the sums are right; they are then those of all workers."""
        self._replays.forget()
        for number in range(MAX_ATTEMPTS):
            attempt = _Attempt(batch, global_step, number)
            packed = self._peers.agree(lambda: self._attempt(attempt, feed))  # noqa: B023  (called at once)
            faults.reach("after the scalars")
            scalars = read_scalars(packed, self._settings.virtual_nodes)
            self._replays.compare(global_step, scalars, self._bystanders.set_anew)
            if any(report.born for report in scalars.nodes.values()):
                self._share_births(global_step)
                self._replays.forget()  # the next attempt begins with other buffers
            elif self._reduction.accept(scalars.peaks):
                return attempt, scalars
        raise HiddenStateError(
            f"step {global_step} gave other gradients on each of {MAX_ATTEMPTS} attempts. Something in the model "
            "or loss_fn keeps state between calls; `vf run --audit` finds out what."
        )

    def abandon(self) -> None:
        """Undo what an unfinished attempt has left: only committed steps count."""
        self._buffers.compare()
        self._buffers.restore()

    def _share_births(self, global_step: int) -> None:
        """Give every worker the buffers that virtual nodes have made; the step is replayed with them."""
        mine = {name: (birth.node, birth.tensor, birth.persistent) for name, birth in self._buffers.born.items()}
        births: dict[str, Birth] = {}
        for theirs in self._peers.exchanged("step", global_step, mine):
            for name, fields in theirs.items():
                births[name] = min((Birth(*fields), *([births[name]] if name in births else [])), key=lambda b: b.rank)
        self.abandon()
        self._buffers.adopt(births)
        self._reduction.buffer_sums.adopt()

    def _attempt(self, attempt: _Attempt, feed: Feed) -> Tensor:
        batch = attempt.batch
        self.abandon()  # the last attempt may have ended in the middle of a virtual node
        # Compared while the waves run, before anything is reduced: no extra round trip.
        arguments = derive(0, self._settings.trainer, batch.epoch, batch.step, batch.order, self._reduction.signature)
        calls = self._peers.announce("step", attempt.global_step, arguments)
        by_value = attempt.number == 0 and (self._steps == 0 or self._audit is not None)
        self._untouched = Untouched(self._model, self._parameters, by_value=by_value)
        self._buffers.born = {}
        busy = [node for node in self._peers.nodes(self._settings.virtual_nodes) if len(batch.shards[node])]
        if self._audit is not None:
            self._rehearse(attempt, feed)
        self._reduction.begin(self._peers.group)
        mine: dict[int, NodeScalars] = {}
        for node in busy:
            mine[node] = self._run_node(attempt, node, feed, calls.check if node == busy[-1] else None)
        if not busy:
            calls.check()
        self._reduction.flush()
        if self._audit is not None:
            self._audit.compare(attempt.global_step, self._peers.group)
        faults.reach("before the scalars")
        # Last, and only by a worker that holds all sums: whoever completes this knows that everyone holds them.
        return reduce_scalars(mine, self._reduction.peaks(), self._settings.virtual_nodes, self._peers.group)

    def _rehearse(self, attempt: _Attempt, feed: Feed) -> None:
        """Run the next worker's virtual nodes in the opposite order, for the audit to compare."""
        assert self._audit is not None
        membership = self._peers.membership
        following = membership.devices[(membership.devices.index(membership.device) + 1) % len(membership.devices)]
        nodes = membership.mapping(self._settings.virtual_nodes).nodes_of(following)
        self._reduction.begin(self._peers.group)
        self._audit.rehearsal()
        for node in reversed(nodes):
            if len(attempt.batch.shards[node]):
                self._run_node(attempt, node, feed, None)
        self.abandon()
        self._buffers.born = {}
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
            self._audit.begin_node(self._reduction, node)
        try:
            faults.reach("forward")
            if self._steps == 0:
                self._replays.loaded(node, shard.batch)
            watch = self._bystanders.watched(attempt.global_step, node) if self._steps == 0 else nullcontext()
            with watch:
                loss = read_loss(self._settings.loss_fn(self._model, shard.batch), shard.examples)
            self._untouched.check_forward(attempt.global_step)
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
            if "backward through the graph a second time" in str(error):
                raise HiddenStateError(_graph_advice(node, attempt.global_step)) from error
            raise
        self._untouched.check_node(attempt.global_step)
        if self._steps == 0:
            self._replays.ran(node)
        self._buffers.compare()
        born = self._buffers.end_node(node)
        integers = self._buffers.integers()
        unclean = self._reduction.end_node(shard.examples)
        self._pace.end_wave(shard.examples, attempt.global_step)
        total = float(loss.total.detach()) * (shard.examples if loss.is_mean else 1)
        return NodeScalars(total, loss.weight, shard.ids, integers, unclean, loss.is_mean, born)

    def _backward(self, loss: Loss, shard: Shard, examples: int) -> None:
        total, factor = loss.total, 1.0
        if loss.is_mean:
            factor = shard.examples / examples if self._reduction.normalises else float(shard.examples)
        if total.dtype in (torch.float16, torch.bfloat16):
            # 257 is 256 there: gradients are weighed instead, one by one.
            self._reduction.begin_backward(factor)
        else:
            self._reduction.begin_backward()
            total = total * factor if loss.is_mean else total
        (self._scaler.scale(total) if self._scaler is not None else total).backward()

    def _finish(self, attempt: _Attempt, scalars: StepScalars) -> float | None:
        """Set gradients and buffers to those of the step; return the gradient's norm if it came for free."""
        self._buffers.restore()
        means = all(node.is_mean for node in scalars.nodes.values())
        weight = 1.0 if means and self._reduction.normalises else scalars.weight
        norm = self._reduction.finish(scalars.peaks, weight, attempt.batch.examples)
        if self._must_be_finite and norm is not None and not math.isfinite(norm):
            raise NonFiniteError(
                f"in step {attempt.global_step}, the gradient's norm is {norm}, although all virtual nodes' gradients "
                f"are finite: divided by the summed weight of {weight:.3g}, they leave the range of their type. "
                + _NON_FINITE_ADVICE
            )
        return norm

    def _commit(
        self, attempt: _Attempt, scalars: StepScalars, norm: float | None, accumulator: str | None
    ) -> StepResult:
        if self._settings.mixed and norm is not None:
            norm = self._leads(norm, attempt.global_step)
        seed = self._settings.seed
        reseed(derive(seed, "update", attempt.global_step))  # some optimizers draw noise
        faults.reach("optimizer")
        self._pace.begin()
        norm = self._update(norm, attempt.global_step)
        self._pace.end_update(len(self._peers.membership.devices))
        faults.reach("after the commit")
        ids = tuple(node.ids for node in scalars.nodes.values())
        return StepResult(scalars.total / scalars.weight, norm, ids, attempt.number + 1, accumulator)

    def _leads(self, value: float, global_step: int) -> float:
        """The lead's *value*, to the bit."""
        bits = int.from_bytes(struct.pack("<d", value), "little", signed=True)
        shared = self._peers.from_lead("step", global_step, lambda: bits)
        return float(struct.unpack("<d", shared.to_bytes(8, "little", signed=True))[0])

    def _update(self, norm: float | None, global_step: int) -> float | None:
        limit = self._settings.clip_grad_norm
        if self._scaler is not None:
            scale = self._scaler.get_scale()
            self._scaler.unscale_(self._optimizer)
            norm = None if norm is None else norm / scale
        if limit is not None:
            gradients = [parameter.grad for parameter in self._reduction.parameters if parameter.grad is not None]
            if norm is None:
                norm = float(torch.nn.utils.get_total_norm(gradients))
                norm = self._leads(norm, global_step) if self._settings.mixed else norm
            _clip(gradients, limit, norm)
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
        if self._must_be_finite:
            for node, report in scalars.nodes.items():
                self._check_finite(global_step, node, report)
            if (name := self._reduction.not_finite(scalars.peaks)) is not None:
                raise NonFiniteError(
                    f"in step {global_step}, the gradient of {name!r} has values that are not finite. "
                    + _NON_FINITE_ADVICE
                )

    def _check_finite(self, global_step: int, node: int, report: NodeScalars) -> None:
        if math.isfinite(report.total) and not report.unclean:
            return
        what = (
            f"the gradient of {self._reduction.names[report.unclean - 1]!r} has values that are not finite"
            if math.isfinite(report.total)
            else f"the loss is {report.total}"
        )
        raise NonFiniteError(
            f"in step {global_step}, virtual node {node}, {what}. Look at that shard. {_NON_FINITE_ADVICE}"
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


def _clip(gradients: list[Tensor], limit: float, norm: float) -> None:
    factor = limit / (norm + 1e-6)
    if gradients and not factor >= 1.0:
        torch._foreach_mul_(gradients, factor)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether *error* means that memory has run out, on a CPU or an accelerator."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return "can't allocate memory" in str(error) or "out of memory" in str(error)


def _graph_advice(node: int, global_step: int) -> str:
    return (
        f"in step {global_step}, the loss of virtual node {node} depends on a graph whose backward has run already: on "
        "something that an earlier call of loss_fn has computed and kept (a hidden state, a cached output, a sum of "
        "losses), or on a loss whose backward() loss_fn has called itself. Detach what is kept; virtual nodes run as "
        "if at the same time, so that one can't use what another has left."
    )


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
