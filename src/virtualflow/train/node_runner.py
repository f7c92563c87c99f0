"""One virtual node of a step: its examples are loaded, its loss is computed and its gradients are added to the sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Protocol

import torch
from torch import Tensor, nn

from virtualflow.core import faults
from virtualflow.core.seeds import derive
from virtualflow.train import accelerators
from virtualflow.train.attempt import Attempt, NodeReport
from virtualflow.train.buffers import Buffers
from virtualflow.train.data import Feed, Shard
from virtualflow.train.loss import NodeLoss, check_rows, read_loss
from virtualflow.train.memory_advice import MemoryUse, is_out_of_memory
from virtualflow.train.node_errors import explained
from virtualflow.train.node_notes import NodeNotes, Noting
from virtualflow.train.pace import Pace
from virtualflow.train.peers import Peers
from virtualflow.train.readback import Readback
from virtualflow.train.reduction import Reduction
from virtualflow.train.replay import Replays
from virtualflow.train.seeding import reseed
from virtualflow.train.state import Parts
from virtualflow.train.step_metrics import MetricNames
from virtualflow.train.step_settings import StepSettings
from virtualflow.train.undeclared_state import UndeclaredState
from virtualflow.train.untouched import Untouched


class Observer(Protocol):
    """Who looks at what virtual nodes compute: the audit, or a sentinel."""

    def begin_node(self, reduction: Reduction, node: int) -> None:
        """*node* runs next."""


class NodeRunner:
    """Runs one virtual node of this worker after another, each from the same buffers and a seed of its own."""

    def __init__(
        self,
        parts: Parts,
        reduction: Reduction,
        buffers: Buffers,
        settings: StepSettings,
        grad_scaler: torch.amp.GradScaler | None,
        peers: Peers,
        observer: Observer | None,
        pace: Pace,
        undeclared: UndeclaredState,
        metric_names: MetricNames,
        replays: Replays,
        notes: NodeNotes | None = None,
    ) -> None:
        self._parts = parts
        self._model = parts.model
        self._reduction = reduction
        self._buffers = buffers
        self._settings = settings
        self._scaler = grad_scaler
        self._peers = peers
        self._observer = observer
        self._pace = pace
        self._undeclared = undeclared
        self._metric_names = metric_names
        self._replays = replays
        self._notes = notes
        self._untouched = Untouched(self._model, {}, by_value=False)
        self._is_first_step = True
        self.current = 0  # the virtual node that was looked at last

    def begin(self, parameters: Mapping[str, nn.Parameter], *, is_first_step: bool, by_value: bool) -> None:
        """An attempt begins. Its virtual nodes must not write to *parameters*; *by_value* finds whatever does."""
        self._untouched = Untouched(self._model, parameters, by_value=by_value)
        self._is_first_step = is_first_step

    def run(
        self,
        attempt: Attempt,
        node: int,
        feed: Feed,
        readback: Readback,
        before_sending: Callable[[], None] | None,
    ) -> NodeReport:
        """Run virtual node *node*. The last of an attempt calls *before_sending* before gradients may be sent."""
        self.current = node
        if self._notes is None:
            return self._run(attempt, node, feed, readback, before_sending, None)
        device, model = self._peers.membership.device, self._model
        with self._notes.watching(attempt.global_step, node, device, attempt.batch, model, self._reduction) as noting:
            return self._run(attempt, node, feed, readback, before_sending, noting)

    def _run(
        self,
        attempt: Attempt,
        node: int,
        feed: Feed,
        readback: Readback,
        before_sending: Callable[[], None] | None,
        noting: Noting | None,
    ) -> NodeReport:
        self._pace.begin()
        held, examples = accelerators.allocated_bytes(self._parts.device), len(attempt.batch.shards[node])
        self._buffers.restore()
        self._reduction.begin_node(last=before_sending is not None)
        if self._observer is not None:
            self._observer.begin_node(self._reduction, node)
        try:
            shard, loss = self._forward(attempt, node, feed, noting)
            if before_sending is not None:
                with self._pace.not_counted():
                    before_sending()
            self._backward(loss, shard, attempt.batch.examples)
        except (MemoryError, RuntimeError, ValueError) as error:
            # After any other error of a device, that look may fail and hide it.
            use = MemoryUse.of(self._parts.device, held or 0) if is_out_of_memory(error) else None
            if (reason := explained(error, node, examples, attempt.global_step, use)) is not None:
                raise reason from error
            raise
        self._untouched.check_node(attempt.global_step)
        if self._is_first_step:
            self._replays.ran(node)
        return self._report(attempt, node, shard, loss, readback)

    def _forward(self, attempt: Attempt, node: int, feed: Feed, noting: Noting | None) -> tuple[Shard, NodeLoss]:
        shard = feed.take(attempt.request(node))
        reseed(derive(self._settings.seed, "node", attempt.global_step, node))
        faults.reach("forward")
        if self._is_first_step:
            self._replays.loaded(node, shard.batch)
        if noting is not None:
            noting.loaded(shard.batch)
        watch = self._undeclared.watched(attempt.global_step, node) if self._is_first_step else nullcontext()
        with watch, self._peers.inside("loss_fn"):
            loss = read_loss(self._settings.loss_fn(self._model, shard.batch), shard.examples)
        if noting is not None:
            noting.computed(loss)
        if loss.is_mean:
            check_rows(shard.batch, shard.examples, drawn=shard.is_drawn)
        self._untouched.check_forward(attempt.global_step)
        return shard, loss

    def _backward(self, loss: NodeLoss, shard: Shard, examples: int) -> None:
        total, factor = loss.total, 1.0
        if loss.is_mean:
            factor = shard.examples / examples if self._reduction.normalises else float(shard.examples)
        if total.dtype in (torch.float16, torch.bfloat16):
            # 257 is 256 there: gradients are weighed instead, one by one.
            self._reduction.begin_backward(factor)
        else:
            self._reduction.begin_backward()
            total = total * factor if loss.is_mean else total
        self._settings.backward(self._scaler.scale(total) if self._scaler is not None else total)

    def _report(self, attempt: Attempt, node: int, shard: Shard, loss: NodeLoss, readback: Readback) -> NodeReport:
        self._buffers.compare()
        born = self._buffers.end_node(node)
        integers = readback.integers(self._buffers.integers().reshape(1))
        self._reduction.end_node(shard.examples)
        self._pace.end_wave(shard.examples, attempt.global_step)
        weight = readback.number(loss.weight) if isinstance(loss.weight, Tensor) else loss.weight
        total = readback.number(loss.total)
        unnamed = self._metric_names.note(loss.metrics)
        metrics = {report.metric.name: report.later(readback) for report in loss.metrics}
        return NodeReport(
            node, shard.examples, shard.ids, loss.is_mean, total, weight, integers, born, unnamed, metrics
        )
