"""The Trainer: what a user's script talks to. It leads the script through its loops and hands the work to the rest."""

from __future__ import annotations

import contextlib
import copy
import gc
import time
import warnings
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from virtualflow.core.seeds import derive
from virtualflow.core.sharding import Epoch, GlobalBatch, Sampler, node_sizes
from virtualflow.errors import CheckpointError, ConfigError
from virtualflow.train import (
    allocator,
    checkpoint,
    checks,
    committed,
    inference,
    other_optimizers,
    preparation,
    run_facts,
    solo,
)
from virtualflow.train.audit import Audit
from virtualflow.train.boundary import Boundary
from virtualflow.train.buffers import Buffers
from virtualflow.train.bystanders import Bystanders
from virtualflow.train.committed import Live
from virtualflow.train.data import Collate, Dataset, Feed, length_of
from virtualflow.train.early_results import Recorded
from virtualflow.train.instruments import Engine, Instruments
from virtualflow.train.journal import Journal
from virtualflow.train.loading import Loading, requests
from virtualflow.train.peers import Peers
from virtualflow.train.position import Loop, Position
from virtualflow.train.reduction import ExactReduction, FastReduction
from virtualflow.train.replicas import Replicas
from virtualflow.train.samples import Samples
from virtualflow.train.saving import Checkpoints
from virtualflow.train.seeding import generators_kept, reseed, seeded
from virtualflow.train.settings import Settings
from virtualflow.train.state import Parts, digest, named_parameters
from virtualflow.train.step import LossFn, StepRunner, StepSettings
from virtualflow.train.variables import MOST_NAMED, Variables

COMPARE_EVERY = 100  # steps, on mixed device types


@dataclass(frozen=True, slots=True)
class EpochReport:
    """What ``fit`` reports of one epoch."""

    epoch: int
    loss: float  # mean over the epoch's examples
    metric: float | None


class Trainer:
    """Trains *model* with a global batch that is split over a fixed number of virtual nodes.

    ``loss_fn(model, batch)`` returns the mean loss over the batch's examples, or ``(total, weight)``.
    *virtual_nodes* is their number, or their sizes. Everything that the result depends on is an argument here; on how
    many devices it runs is not among them.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_fn: LossFn,
        *,
        batch_size: int,
        virtual_nodes: int | Sequence[int],
        state: Any = (),
        reduction: str = "exact",
        seed: int | None = None,
        clip_grad_norm: float | None = None,
        grad_scaler: torch.amp.GradScaler | None = None,
        on_nan: str = "raise",
        collate_fn: Collate | None = None,
        sampler: Sampler | torch.utils.data.Sampler[int] | None = None,
        drop_last: bool = False,
        loader_workers: int | None = None,
    ) -> None:
        self._membership = solo.current()
        state = tuple(state) if isinstance(state, list | tuple) else (state,)
        planned = preparation.planned_sizes(self._membership.job, batch_size)
        self._sizes = planned or node_sizes(batch_size, virtual_nodes)
        self._membership.mapping(len(self._sizes))  # refuses too many devices before anything else is done
        checks.check_choices(reduction, on_nan, loader_workers, clip_grad_norm)
        checks.check_model(model)
        checks.check_optimizer(optimizer, model)
        checks.check_state(state, optimizer)
        if reduction == "exact":
            checks.check_compiled(model, self._sizes, loss_fn)
        self._device = preparation.prepare_device(self._membership, model, reduction)
        self._peers = Peers.of(self._membership)
        self._peers.trainers += 1
        self._number = self._peers.trainers
        self._recorded = Recorded(self._membership)
        self._seed = self._agreed_seed(seed, derive(0, reduction, on_nan, repr(self._sizes), repr(seed)))
        preparation.share_initial_model(self._peers, model)
        self._loading = Loading(self._sizes, self._seed, self._device, collate_fn, sampler, drop_last, loader_workers)
        self._instruments: Instruments = self._membership.job.instruments or Instruments()
        self._pace = self._instruments.pace()
        parts = Parts(model, state)
        buffers = Buffers(parts)
        kind = ExactReduction if reduction == "exact" else FastReduction
        reducer = kind(named_parameters(model), buffers, len(self._sizes))
        settings = Settings(parts, optimizer, state)
        other_optimizers.declare((optimizer, *state))
        self._live = Live(
            parts,
            optimizer,
            reducer,
            buffers,
            settings,
            state,
            grad_scaler,
            Samples(),
            Variables(parts, (optimizer, grad_scaler, *state)),
        )
        self._bystanders = Bystanders(loss_fn, parts, state)
        self._runner = StepRunner(
            parts,
            optimizer,
            reducer,
            buffers,
            StepSettings(
                loss_fn, self._seed, len(self._sizes), self._number, clip_grad_norm, on_nan, self._membership.job.mixed
            ),
            grad_scaler,
            self._peers,
            Audit() if self._membership.job.audit else None,
            self._pace,
            self._bystanders,
        )
        self._replicas = Replicas(self._live, self._peers, self._bystanders)
        self._loop = Loop()
        self._checkpoints = Checkpoints(
            self._membership.job, self._job_facts(), self._live, self._loop, self._peers, self._recorded
        )
        self._inference = inference.Inference(parts, state, self._seed, self._peers)
        self._journal = Journal(self._peers, self._number, len(self._sizes))
        self._boundary = Boundary(self._live, self._loop, self._peers, self._recorded, self._checkpoints, self._journal)
        self._feed: Feed | None = None
        self._announced_generation = -1  # whose shards the feed knows of
        self._passing: Callable[[], Generator[GlobalBatch] | None] = lambda: None  # the iterator that the script has
        self._membership.new_trainer(self._number, self._sizes, sum(p.numel() for p in parts.model.parameters()))
        if not self._membership.joining:
            self._check_replicas("Trainer", "at the start, although vf.seed was called")
            self._journal.run_started(self._run_facts(reduction))

    @property
    def is_lead(self) -> bool:
        """Whether this worker is the one to print and write files."""
        return self._peers.is_lead

    @property
    def global_step(self) -> int:
        """How many steps the job has made."""
        return self._loop.position.global_step

    @property
    def events_path(self) -> Path | None:
        """The job's event stream, on the lead worker: what ``vf verify`` compares."""
        return self._journal.path

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs up to *count* that are still to do: after ``load``, those after the checkpoint."""
        loop = self._loop
        if loop.is_resumable is None:
            loop.is_resumable = self._membership.begin_training()
            if loop.is_resumable:
                self._peers.keep_at_the_end = self._checkpoints.write_end_of_pass
        self._live.variables.before_the_loop()
        if self._membership.joining:
            parameters = sum(parameter.nbytes for parameter in self._live.parts.parameters().values())
            allocator.have_ready(4 * parameters)  # the state that comes, with an optimizer's, and the sums
            self._peers.join(self._boundary.receive_state)
        elif self._membership.job.resume_from is not None and loop.is_resumable and self.global_step == 0:
            self.load(self._membership.job.resume_from)
        loop.epochs = count
        self._peers.under_way.add(self._number)
        try:
            for epoch in range(loop.position.next_epoch, count):
                self._begin_epoch(epoch)
                yield epoch
                loop.finish_epoch()
                self._checkpoints.complete_saves()
            if self._membership.orphaned:
                self._boundary.stop_if_due()
        finally:
            self._peers.under_way.discard(self._number)
            loop.leave_epochs()
            self._recorded.leave_epochs()

    def _begin_epoch(self, epoch: int) -> None:
        if (top := self._loop.begin_epoch(epoch)) is not None:
            # What the script does at the top of this epoch starts from where it started then.
            self._live.settings.put(top, on_the_way=True)
        self._loop.top = self._live.settings.take_copy()
        self._recorded.new_section()
        reseed(derive(self._seed, "epoch", epoch))

    def batches(self, dataset: Dataset) -> Iterator[GlobalBatch]:
        """The global batches of this epoch: for ``step``, once each, from where the job stands."""
        passing = self._batches(dataset)
        self._passing = weakref.ref(passing)
        return passing

    def _batches(self, dataset: Dataset) -> Generator[GlobalBatch]:
        self._loop.begin_pass()
        epoch = self._loading.epoch(dataset, self._loop.position.epoch)
        self._feed = feed = self._loading.kept_feed(dataset)
        length = length_of(dataset, "batches")
        self._live.samples.begin(feed, epoch.number, length)
        self._enter_pass()
        self._instruments.begin_pass(self._engine(feed, length))
        first = self._loop.position.step
        self._announced_generation = -1
        self._journal.epoch_started(epoch, self._loop.epochs, first)
        try:
            for step in range(first, epoch.steps):
                other_optimizers.watch(training=True)
                self._loop.position.step = step  # the script may have skipped a batch
                self._cross_boundary(epoch, step, feed)
                reseed(derive(self._seed, "batch", epoch.number, step))
                yield epoch.batch(step)
            self._close_epoch(epoch)
        finally:
            other_optimizers.watch(training=False)
            feed.close()
            self._loop.finish_epoch()

    def _enter_pass(self) -> None:
        """The script is where the job is: from here on this worker has the job's state."""
        loop, job = self._loop, self._membership.job
        self._live.variables.enter_pass()
        if loop.entering is not None and loop.position.in_pass:
            committed.put(self._live, loop.entering)
            self._replicas.equal_at = self.global_step
            if not job.mixed:  # their kernels round differently
                than = "when the checkpoint was written" if loop.is_resumed else "on the other workers"
                where = f"on device {self._membership.device} than {than}"
                self._live.samples.check(loop.entering.get("samples", {}), where)
        by_hand = loop.is_resumed and job.resume_from is None  # whose script has its own ways
        if loop.entering is not None and not by_hand:
            self._warn_of_variables(self._live.variables.missing(loop.entering.get("variables", {})))
        if loop.entering is not None and loop.is_resumed and loop.position.step and self._is_enumerated():
            self._journal.warn_once(
                f"this job is resumed at step {loop.position.step} of an epoch, while enumerate(trainer.batches(...)) "
                "counts from 0. If anything but what is printed depends on that number (a schedule, a rate), use "
                "batch.step, which counts within the epoch, or trainer.global_step."
            )
        loop.enter_pass()
        self._recorded.in_pass = True

    def _is_enumerated(self) -> bool:
        """Whether the script counts the batches by itself."""
        return any(isinstance(holder, enumerate) for holder in gc.get_referrers(self._passing()))

    def _warn_of_variables(self, lost: list[str]) -> None:
        resumed = self._loop.is_resumed
        how = "this job is resumed" if resumed else f"device {self._membership.device} has joined a running job"
        names = ", ".join(map(repr, lost[:MOST_NAMED])) + (" and others" if len(lost) > MOST_NAMED else "")
        if lost and (self.is_lead or not resumed):
            warnings.warn(
                f"{how}, and runs the script from the top: {names} had changed by then, and here they have not. If "
                "what is trained, or printed, depends on them, keep them in the job: progress = vf.State(best=..., "
                "bad=0) and vf.Trainer(..., state=[progress]); modules, schedules, lists and dicts go into state=[...] "
                "as they are.",
                stacklevel=4,
            )

    def step(self, batch: GlobalBatch) -> float:
        """Train on one global batch; return its mean loss, the same on every worker."""
        if not isinstance(batch, GlobalBatch) or self._feed is None:
            raise ConfigError(
                f"trainer.step got a {type(batch).__name__}, expected what `for batch in trainer.batches(dataset):` "
                "yields: indices, from which each device loads its own shards."
            )
        if not self._live.parts.model.training:
            self._journal.warn_once(
                "trainer.step trains a model that is in eval mode: without dropout, and with batch norm's running "
                "statistics. If a test of your own called model.eval(), call model.train() after it; "
                "trainer.evaluate(dataset, metric_fn) sets the mode back by itself."
            )
        started = time.perf_counter()
        try:
            result = self._runner.run(batch, self.global_step, self._feed)
        finally:
            reseed(derive(self._seed, "after", batch.epoch, batch.step))
        seconds = time.perf_counter() - started
        self._loop.complete_step(batch.step, self._journal.step_done(self._loop.position, batch, result, seconds))
        self._membership.tell_pace(self.global_step, self._pace.wave_seconds, self._pace.overran)
        return result.loss

    def fit(
        self,
        dataset: Dataset,
        epochs: int,
        *,
        schedule: Any = None,
        test_set: Dataset | None = None,
        metric_fn: inference.MetricFn | None = None,
        on_epoch: Callable[[EpochReport], None] | None = None,
    ) -> list[EpochReport]:
        """The usual loop: train, step *schedule* once an epoch, evaluate *metric_fn* on *test_set*."""
        if (test_set is None) != (metric_fn is None):
            raise ConfigError("fit needs both test_set and metric_fn to evaluate, or neither")
        if schedule is not None and not any(item is schedule for item in self._live.state):
            raise ConfigError("fit got a schedule that is not in state=[...], so a resumed job would lose its position")
        reports = []
        for epoch in self.epochs(epochs):
            total, examples = 0.0, 0
            for batch in self.batches(dataset):
                total += self.step(batch) * batch.examples
                examples += batch.examples
            if schedule is not None:
                schedule.step()
            metric = self.evaluate(test_set, metric_fn) if test_set is not None and metric_fn is not None else None
            reports.append(EpochReport(epoch, total / max(examples, 1), metric))
            if on_epoch is not None:
                on_epoch(reports[-1])
        return reports

    def evaluate(self, dataset: Dataset, metric_fn: inference.MetricFn) -> float:
        """The mean of a metric over *dataset*; ``metric_fn(model, batch)`` returns ``(total, weight)``."""
        with generators_kept():
            return float(self._recorded(lambda: self._evaluate(dataset, metric_fn)))

    def predict(self, dataset: Dataset, predict_fn: inference.PredictFn = inference.default_predict) -> Any:
        """The model's outputs for every example of *dataset*, in its order, on every worker."""
        pass_ = inference.Pass(length_of(dataset, "predict"), self._sizes)
        with generators_kept(), self._loading.feed(dataset) as feed:
            packed = self._recorded(lambda: self._inference.predict(pass_, feed, predict_fn, self.global_step))
        return inference.unpack(packed, pass_)

    def digest(self) -> str:
        """sha256 over the model, its buffers and the optimizer's state, and over the modules in ``state=``."""
        return digest(self._live.parts, self._live.optimizer)

    def save(self, path: str | Path) -> None:
        """Write the job's state, so that any number of devices can go on from it.

        A save inside the loop over ``batches`` resumes at the next step; one after it counts the epoch as finished.
        """
        self._recorded(lambda: self._save(Path(path)))

    def load(self, path: str | Path, *, force: bool = False) -> None:
        """Go on from a checkpoint. *force* takes the state of a job with another seed or batch into this one."""
        path = Path(path)
        if self._membership.joining:
            return  # the job has long gone on from there
        saved = checkpoint.read(path)
        if not force:
            checkpoint.check_same_job(path, saved["job"], self._job_facts())
        else:
            saved["samples"] = {}
        if force and saved["job"].get("node_sizes") != self._job_facts()["node_sizes"]:
            saved["grids"] = {}
        inside = Position(**saved["position"]).is_inside
        if inside:
            # For the script, which may look at it. It comes once more where the loop is, after what the script does at
            # the top of the epoch, which may give the model the form that this needs.
            with contextlib.suppress(CheckpointError):
                committed.put(self._live, copy.deepcopy(saved))
        else:
            committed.put(self._live, saved)
        self._loop.go_to(saved, resumed=True)
        self._recorded.replay([*saved["between"], *(saved["results"] if inside else [])])
        self._check_replicas("load", "after load")
        self._journal.loaded(self._loop.position, path)

    def export(self, path: str | Path) -> None:
        """Write the model's plain ``state_dict``, for use without VirtualFlow."""
        model = getattr(self._live.parts.model, "_orig_mod", self._live.parts.model)
        write = lambda: checkpoint.write_atomically(Path(path), model.state_dict())  # noqa: E731
        self._recorded(lambda: self._checkpoints.write_once("export", Path(path), write))

    def _agreed_seed(self, seed: int | None, arguments: int) -> int:
        chosen = preparation.proposed_seed(self._membership.job, seed)
        return int(self._recorded(lambda: self._peers.from_lead("Trainer", 0, lambda: chosen, arguments)))

    def _engine(self, feed: Feed, examples: int) -> Engine:
        nodes, settle = len(self._sizes), self._boundary.settle
        return Engine(self._peers, self._runner, self._pace, feed, examples, nodes, self._live, settle)

    def _run_facts(self, reduction: str) -> dict[str, Any]:
        return {
            **run_facts.environment(self._device),
            "reduction": reduction,
            **self._job_facts(),
            "optimizer": run_facts.optimizer_settings(self._live.optimizer),
            "seeded": seeded() is not None,
            "initial_digest": self.digest(),
        }

    def _job_facts(self) -> dict[str, Any]:
        sizes = self._sizes
        return {"seed": self._seed, "batch_size": sum(sizes), "virtual_nodes": len(sizes), "node_sizes": list(sizes)}

    def _cross_boundary(self, epoch: Epoch, step: int, feed: Feed) -> None:
        self._boundary.cross(epoch, step)
        if self._membership.job.mixed and self.global_step and self.global_step % COMPARE_EVERY == 0:
            self._check_replicas("step", f"at step {self.global_step}")
        if self._announced_generation != self._membership.generation:
            feed.announce(requests(epoch, step, self._peers.nodes(len(self._sizes))))
            self._announced_generation = self._membership.generation

    def _evaluate(self, dataset: Dataset, metric_fn: inference.MetricFn) -> float:
        pass_ = inference.Pass(length_of(dataset, "evaluate"), self._sizes)
        with self._loading.feed(dataset) as feed:
            value = self._inference.evaluate(pass_, feed, metric_fn, self.global_step)
        self._journal.evaluated(self.global_step, value)
        return value

    def _save(self, path: Path) -> None:
        self._checkpoints.save(path)
        self._journal.saved(self.global_step, path)

    def _close_epoch(self, epoch: Epoch) -> None:
        call = "the end of an epoch"
        self._bystanders.check("it has changed since the first step")
        self._check_replicas(call, f"at the end of epoch {epoch.number}")
        value = self.digest()
        if self._peers.has_joiners(call, self.global_step):
            if difference := self._replicas.odd_number(call, self.global_step):
                self._journal.warn_once(difference)
            self._check_samples(call)
        self._journal.regrouped(self.global_step)  # the last step of a job has no boundary after it
        self._journal.epoch_ended(epoch, self.global_step, value)
        self._loop.position.step = epoch.steps
        self._checkpoints.mark_end_of_pass(value)

    def _check_samples(self, call: str) -> None:
        """A worker that came between two epochs has trained on the dataset that it made: is it that of the others?"""
        if not self._membership.job.mixed:
            mine = self._live.samples.take() if self.is_lead else {}
            everyone = self._peers.exchanged(call, self.global_step, mine)
            where = f"on device {self._membership.device} than on device {self._membership.devices[0]}"
            self._live.samples.check(everyone[0], where)

    def _check_replicas(self, call: str, when: str) -> None:
        if aligned := self._replicas.check(call, self.global_step, when):
            self._journal.replicas_aligned(self.global_step, aligned)
