"""One step: every virtual node of this worker in turn, one reduction, one update. Replayable as a whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from virtualflow.core import faults
from virtualflow.core.seeds import derive
from virtualflow.core.sharding import GlobalBatch
from virtualflow.core.verdicts import SentinelVerdict
from virtualflow.errors import CollectiveError, HiddenStateError, PeerLostError
from virtualflow.train.attempt import Attempt, NodeReport
from virtualflow.train.audit import Audit
from virtualflow.train.buffers import Buffers
from virtualflow.train.data import Feed
from virtualflow.train.new_buffers import from_all
from virtualflow.train.node_notes import NodeNotes
from virtualflow.train.node_runner import NodeRunner
from virtualflow.train.pace import Pace
from virtualflow.train.peers import Peers
from virtualflow.train.phases import others_frozen, updated_by
from virtualflow.train.readback import Readback
from virtualflow.train.reduction import Reduction, SumsLost
from virtualflow.train.replay import Replays
from virtualflow.train.scalars import NodeScalars, StepScalars, read_scalars, reduce_scalars
from virtualflow.train.seeding import check_settings, reseed
from virtualflow.train.sentinel import Sentinel
from virtualflow.train.sharded.sharded_update import ShardedUpdate
from virtualflow.train.sharded.shards import Shards
from virtualflow.train.shared_errors import LocalError
from virtualflow.train.state import Optimizers, Parts, named_parameters, tensors_in
from virtualflow.train.step_checks import StepChecks
from virtualflow.train.step_metrics import MetricNames
from virtualflow.train.step_settings import StepSettings
from virtualflow.train.undeclared_state import UndeclaredState
from virtualflow.train.update import Update

# Some for buffers that a forward makes or writes for the first time, one to measure, one to move the grids. More can
# only mean a loss that is not replayable.
MAX_ATTEMPTS = 6


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a committed step leaves behind for its caller and for the certificate."""

    loss: float
    gradient_norm: float | None
    ids: tuple[int, ...]
    attempts: int
    accumulator: str | None
    metrics: dict[str, float] = field(default_factory=dict)
    phase: str = ""
    verdicts: tuple[SentinelVerdict, ...] = ()  # of a sentinel


class StepRunner:
    """Runs steps on one worker, together with its peers."""

    def __init__(
        self,
        parts: Parts,
        optimizers: Optimizers,
        reduction: Reduction,
        buffers: Buffers,
        settings: StepSettings,
        grad_scaler: torch.amp.GradScaler | None,
        peers: Peers,
        audit: Audit | None,
        pace: Pace,
        undeclared: UndeclaredState,
        metric_names: MetricNames,
        shards: Shards | None = None,
        notes: NodeNotes | None = None,
        sentinel: Sentinel | None = None,
    ) -> None:
        self._parts = parts
        self._model = parts.model
        self._optimizers = optimizers
        self._reduction = reduction
        self._buffers = buffers
        self._settings = settings
        self._peers = peers
        self._audit = audit
        self._sentinel = sentinel
        self._pace = pace
        self._undeclared = undeclared
        self._metric_names = metric_names
        self._listing = buffers.listing
        self._parameters: dict[str, nn.Parameter] = {}  # the model's, as they are in this step
        self._steps = 0  # that this worker has made
        self._met: LocalError | None = None  # in this attempt
        self._replays = Replays(parts)
        self._nodes = NodeRunner(
            parts,
            reduction,
            buffers,
            settings,
            grad_scaler,
            peers,
            audit or sentinel,
            pace,
            undeclared,
            metric_names,
            self._replays,
            notes,
        )
        must_be_finite = settings.on_nan == "raise" and grad_scaler is None
        reduction.finds_not_finite = must_be_finite
        self._checks = StepChecks(reduction, buffers, must_be_finite=must_be_finite)
        self._shards = shards
        self._update: Update | ShardedUpdate = (
            Update(self._model, optimizers, reduction, settings, grad_scaler, peers)
            if shards is None
            else ShardedUpdate(shards, optimizers, settings, grad_scaler, peers)
        )
        if grad_scaler is not None:
            # It makes its scale when it is first used, which a worker without examples would not do.
            grad_scaler.scale(torch.zeros((), device=parts.device))

    def run(self, batch: GlobalBatch, global_step: int, feed: Feed, *, update: bool = True) -> StepResult:
        """Run one step on *batch*, together with the other workers; without *update*, its gradients are left."""
        if not self._settings.phase:
            return self._run(batch, global_step, feed, update=update)
        with others_frozen(self._model, updated_by(self._optimizers)):
            return self._run(batch, global_step, feed, update=update)

    def _run(self, batch: GlobalBatch, global_step: int, feed: Feed, *, update: bool) -> StepResult:
        if not self._reduction.normalises:
            check_settings()
        self._parameters = named_parameters(self._model)
        if self._shards is not None:
            self._shards.follow()
        self._reduction.adopt(self._own_parameters())
        self._buffers.hold()
        self._adopt_buffers()
        if self._steps == 1:  # later ones are found at the ends of epochs
            self._undeclared.check("it has changed since the first step")
        self._pace.begin_step()
        if self._sentinel is not None:
            self._sentinel.begin_step(global_step)
        try:
            attempt, scalars, norm = self._finished(batch, global_step, feed)
        except Exception:
            # Whoever catches this finds the model as it was before the step.
            self.abandon()
            self._reduction.forget()
            raise
        result = self._commit(attempt, scalars, norm, update=update)
        self._steps += 1
        return result

    def _finished(self, batch: GlobalBatch, global_step: int, feed: Feed) -> tuple[Attempt, StepScalars, float | None]:
        """The attempt that counts, with gradients and buffers set to those of the step; the norm if it was free."""
        number = 0
        while True:
            attempt, scalars = self._attempts(batch, global_step, feed, number)
            self._checks.check(global_step, scalars)
            try:
                return attempt, scalars, self._finish(attempt, scalars)
            except SumsLost:
                number = attempt.number

    def _own_parameters(self) -> dict[str, nn.Parameter]:
        """Those that this phase updates; without phases, all of the model's: a loss_fn may unfreeze what it needs."""
        if not self._settings.phase:
            return self._parameters
        mine = updated_by(self._optimizers)
        return {name: parameter for name, parameter in self._parameters.items() if parameter in mine}

    def _adopt_buffers(self) -> None:
        if self._listing != self._buffers.listing:
            self._listing = self._buffers.listing
            self._reduction.buffer_sums.adopt()

    def _attempts(self, batch: GlobalBatch, global_step: int, feed: Feed, first: int) -> tuple[Attempt, StepScalars]:
        """Try until the sums are right, from the attempt of number *first* on; they are then those of all workers."""
        self._replays.forget()
        number, last = first, MAX_ATTEMPTS
        while number < last:
            attempt = Attempt(batch, global_step, number)
            number += 1
            packed = self._peers.agree(lambda: self._attempt(attempt, feed))  # noqa: B023  (called at once)
            faults.reach("after the scalars")
            watched = self._sentinel.count if self._sentinel is not None else 0
            scalars = read_scalars(packed, self._settings.virtual_nodes, self._names, watched)
            if scalars.failed:
                self._peers.raise_met("step", global_step, self._met)
                continue  # the worker that has met it was lost meanwhile: others run its virtual nodes
            if self._sentinel is not None and self._sentinel.objects(scalars.witnessed):
                self._replays.forget()  # what a broken device has computed is no sign of hidden state
                last += 1
                continue
            self._replays.compare(global_step, scalars, self._undeclared.set_anew)
            unnamed = any(report.unnamed for report in scalars.nodes.values())
            if unnamed:
                self._metric_names.add(self._peers.exchanged("step", global_step, self._unknown_metrics()))
            if any(report.born for report in scalars.nodes.values()):
                self._share_new_buffers(global_step)
                self._replays.forget()  # the next attempt begins with other buffers
            elif self._reduction.accept(scalars.peaks) and not unnamed:
                return attempt, scalars
        raise HiddenStateError(
            f"step {global_step} gave other gradients on each of {MAX_ATTEMPTS} attempts. Something in the model "
            "or loss_fn keeps state between calls; `vf run --audit` finds out what."
        )

    @property
    def _names(self) -> list[str]:
        return [metric.name for metric in self._metric_names.known]

    def _unknown_metrics(self) -> list[tuple[str, bool]]:
        return sorted((metric.name, metric.is_mean) for metric in self._metric_names.unknown)

    def abandon(self) -> None:
        """Undo what an unfinished attempt has left: only committed steps count."""
        self._buffers.reset()

    def _share_new_buffers(self, global_step: int) -> None:
        """Give every worker the buffers that virtual nodes have made; the step is replayed with them."""
        new_buffers = from_all(self._peers, global_step, self._buffers.born, self._parts.device)
        self.abandon()
        self._buffers.adopt(new_buffers)
        self._adopt_buffers()

    def _attempt(self, attempt: Attempt, feed: Feed) -> Tensor:
        batch = attempt.batch
        faults.expose("parameters", list(self._parameters.values()))
        self.abandon()  # the last attempt may have ended in the middle of a virtual node
        if self._shards is not None:
            self._shards.settle()
        # Compared while the waves run, before anything is reduced: no extra round trip.
        where = (batch.epoch, batch.step, batch.order)
        arguments = derive(0, self._settings.trainer, self._settings.phase, *where, self._reduction.signature)
        calls = self._peers.announce("step", attempt.global_step, arguments)
        by_value = attempt.number == 0 and (self._steps == 0 or self._audit is not None)
        self._nodes.begin(self._parameters, is_first_step=self._steps == 0, by_value=by_value)
        self._buffers.born, self._metric_names.unknown = {}, set()
        busy = [node for node in self._peers.nodes(self._settings.virtual_nodes) if len(batch.shards[node])]
        self._met = None
        if self._audit is not None:
            self._note_errors(attempt, self._settings.virtual_nodes, lambda: self._rehearse_for_audit(attempt, feed))
        elif self._sentinel is not None and (again := self._sentinel.begin(attempt)):
            self._note_errors(attempt, self._settings.virtual_nodes, lambda: self._run_again(attempt, feed, again))
        self._reduction.begin(self._peers.group, self._waves(batch))
        readback, reports = Readback(), list[NodeReport]()

        def run_nodes() -> None:
            for node in busy:
                is_first_to_send = node == busy[0 if self._reduction.is_sharded else -1]
                check = calls.check if is_first_to_send else None
                reports.append(self._nodes.run(attempt, node, feed, readback, check))

        self._note_errors(attempt, 0, run_nodes)
        # Whoever has met an error sends what it has, since the others wait for that; it comes out with the scalars.
        calls.check()
        self._reduction.flush()
        if self._audit is not None and self._all_ran():
            self._audit.compare(attempt.global_step, self._peers.group)
            attempt.accumulator = self._audit.hash_accumulator(self._reduction)
        return self._reduced(attempt, reports, readback)

    def _note_errors(self, attempt: Attempt, order: int, run: Callable[[], None]) -> None:
        """Have *run* run virtual nodes, and note the error of one. Those of a lower *order* count first."""
        try:
            run()
        except (PeerLostError, CollectiveError):
            raise
        except Exception as error:
            place = f"step {attempt.global_step}, virtual node {self._nodes.current}"
            self._met = LocalError(error, place, self._peers.membership.device, order + self._nodes.current)

    def _all_ran(self) -> bool:
        """Whether no worker has met an error."""
        met = torch.tensor([self._met is not None], dtype=torch.int64)
        if self._peers.group is not None:
            self._peers.group.max(met).wait()
        return not bool(met)

    def _reduced(self, attempt: Attempt, reports: list[NodeReport], readback: Readback) -> Tensor:
        """The scalars of all workers' virtual nodes, once this worker holds all sums."""
        measured = self._reduction.measure(readback)
        means = bool(reports) and all(report.is_mean for report in reports)
        attempt.is_divided = means and not self._reduction.is_sharded
        if attempt.is_divided:  # the weight of all is known, and so the norm can be read with the rest
            squares = self._reduction.divide(1.0 if self._reduction.normalises else float(attempt.batch.examples))
            attempt.squares = readback.number(squares) if squares is not None else None
        if self._peers.group is not None:
            self._peers.group.settle()
        readback.read()
        values = measured()
        mine: dict[int, NodeScalars] = {}

        def read_reports() -> None:
            # A virtual node that has failed has left no report.
            for report, unclean in zip(reports, values.unclean, strict=self._met is None):
                self._nodes.current = report.node
                mine[report.node] = report.scalars(unclean)

        self._note_errors(attempt, 0, read_reports)
        faults.reach("before the scalars")
        # Last, and only by a worker that holds all sums: whoever completes this knows that everyone holds them.
        return reduce_scalars(
            mine if self._met is None else None,
            values.peaks,
            self._settings.virtual_nodes,
            self._names,
            self._peers.group,
            self._sentinel.witnessed(mine if self._met is None else None) if self._sentinel is not None else (),
        )

    def _waves(self, batch: GlobalBatch) -> list[int]:
        """How many virtual nodes of *batch* each worker runs, in the order of their ranks."""
        membership = self._peers.membership
        mapping = membership.mapping(self._settings.virtual_nodes)
        return [sum(len(batch.shards[n]) > 0 for n in mapping.nodes_of(device)) for device in membership.devices]

    def _rehearse_for_audit(self, attempt: Attempt, feed: Feed) -> None:
        """Run the next worker's virtual nodes in the opposite order, for the audit to compare."""
        assert self._audit is not None
        membership = self._peers.membership
        following = membership.devices[(membership.devices.index(membership.device) + 1) % len(membership.devices)]
        nodes = membership.mapping(self._settings.virtual_nodes).nodes_of(following)
        self._audit.rehearsal()
        self._rehearse(attempt, feed, [node for node in reversed(nodes) if len(attempt.batch.shards[node])], Readback())
        self._audit.performance()

    def _run_again(self, attempt: Attempt, feed: Feed, nodes: list[int]) -> None:
        """Run virtual nodes of other workers, for the sentinel to compare."""
        assert self._sentinel is not None
        readback = Readback()
        reports = self._rehearse(attempt, feed, nodes, readback)
        readback.read()
        self._sentinel.note_again({report.node: report.scalars(0) for report in reports})

    def _rehearse(self, attempt: Attempt, feed: Feed, nodes: list[int], readback: Readback) -> list[NodeReport]:
        """Run *nodes*, which are other workers', without counting them."""
        self._reduction.begin(self._peers.group, self._waves(attempt.batch))
        reports = [self._nodes.run(attempt, node, feed, readback, None) for node in nodes]
        self.abandon()
        self._buffers.born = {}
        return reports

    def _finish(self, attempt: Attempt, scalars: StepScalars) -> float | None:
        """Set gradients and buffers to those of the step; return the gradient's norm if it came for free."""
        self._buffers.restore()
        means = all(node.is_mean for node in scalars.nodes.values())
        weight = 1.0 if means and self._reduction.normalises else scalars.weight
        if not attempt.is_divided:
            squares = self._reduction.divide(weight)
            attempt.squares = (lambda: float(squares)) if squares is not None else None
        self._reduction.finish(scalars.peaks, attempt.batch.examples)
        norm = self._reduction.norm(attempt.squares()) if attempt.squares is not None else None
        self._checks.check_norm(attempt.global_step, norm, weight)
        return norm

    def _commit(self, attempt: Attempt, scalars: StepScalars, norm: float | None, *, update: bool) -> StepResult:
        if norm is not None:
            norm = self._update.agreed(norm, attempt.global_step)
        seed = self._settings.seed
        reseed(derive(seed, "update", attempt.global_step))  # some optimizers draw noise
        faults.reach("optimizer")
        faults.expose("optimizer state", [*tensors_in([dict(o.state) for o in self._optimizers])])
        self._pace.begin()
        if update:
            norm = self._update.make(norm, attempt.global_step)
        self._pace.end_update(len(self._peers.membership.devices))
        faults.reach("after the commit")
        ids = tuple(node.ids for node in scalars.nodes.values())
        metrics = self._metric_names.combined(node.metrics for node in scalars.nodes.values())
        loss = scalars.total / scalars.weight
        phase = self._settings.phase
        verdicts = tuple(self._sentinel.verdicts) if self._sentinel is not None else ()
        return StepResult(loss, norm, ids, attempt.number + 1, attempt.accumulator, metrics, phase, verdicts)
