"""The Trainer: what a user's script talks to. It leads the script through its loops and hands the work to the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from virtualflow.core.seeds import derive
from virtualflow.core.sharding import GlobalBatch, Sampler
from virtualflow.errors import ConfigError
from virtualflow.loggers import Tool
from virtualflow.train import assembly, checkpoint, checks, inference, other_optimizers, preparation, run_facts, solo
from virtualflow.train.boundary import Boundary
from virtualflow.train.comparisons import Comparisons
from virtualflow.train.data import Collate, Dataset
from virtualflow.train.early_results import Recorded
from virtualflow.train.entrance import Entrance
from virtualflow.train.instruments import Engine, Instruments, MakesSteps
from virtualflow.train.journal import Journal
from virtualflow.train.loading import Data, Loading
from virtualflow.train.open_pass import OpenPass
from virtualflow.train.passes import Passes
from virtualflow.train.peers import Peers
from virtualflow.train.phases import LossFn, all_optimizers, as_module, check_phase, phases_of
from virtualflow.train.position import Loop, Position
from virtualflow.train.resuming import Resuming
from virtualflow.train.saving import Checkpoints
from virtualflow.train.seeding import reseed, seeded
from virtualflow.train.sharded.collection import job_digest
from virtualflow.train.sharded.shards import Shards
from virtualflow.train.shared_calls import SharedCalls
from virtualflow.train.stages.cell_runs import StageLoss
from virtualflow.train.stages.job_optimizer import items_of_state
from virtualflow.train.stages.stage_cut import Stages
from virtualflow.train.stages.staged_inference import StagedInference
from virtualflow.train.stages.staged_state import StagedState
from virtualflow.train.stages.staging import StagedEngine, Staging, refuse_without_stages
from virtualflow.train.state import Optimizers, Parts
from virtualflow.train.step_metrics import StepLoss
from virtualflow.train.step_settings import StepSettings
from virtualflow.train.undeclared_state import UndeclaredState


@dataclass(frozen=True, slots=True)
class EpochReport:
    """What ``fit`` reports of one epoch."""

    epoch: int
    loss: float  # mean over the epoch's examples
    metric: float | None


class Trainer:
    """Trains *model* with a global batch that is split over a fixed number of virtual nodes.

    ``loss_fn(model, batch)`` returns the mean loss over the batch's examples, or ``(total, weight)``; with metrics as
    ``(loss, {"accuracy": (right, examples)})`` or as a ``vf.Loss``.
    *batch_size* is one number, or a curriculum: from which epoch on it is which, as in ``{0: 64, 10: 128}``.
    *virtual_nodes* is their number, or their sizes.

    A model that is larger than a device is given as *stages* instead, functions that build its parts. Then
    ``loss_fn(output, batch)`` gets the last one's output, ``optimizer(params)`` makes an optimizer, and items of
    *state* may be functions of ``trainer.optimizer``, which schedules need. *tied* names
    weights that are another stage's, *copies* says on how many devices each stage is kept, *pipeline* is "1f1b" or
    "gpipe", and with *recompute* activations are computed twice instead of kept.

    ``sharding="state"`` divides the optimizer's state and the sums among the devices, with *copies* of each part.

    Everything that the result depends on is an argument here; on how
    many devices it runs is not among them.
    """

    def __init__(
        self,
        model: nn.Module | Mapping[str, nn.Module] | Sequence[nn.Module] | None = None,
        optimizer: Any = None,
        loss_fn: LossFn | StageLoss | None = None,
        *,
        stages: Stages | None = None,
        tied: Mapping[str, str] | None = None,
        pipeline: str = "1f1b",
        recompute: bool = False,
        sharding: str = "none",
        copies: int = 2,
        batch_size: int | Mapping[int, int],
        virtual_nodes: int | Sequence[int],
        state: Any = (),
        reduction: str = "exact",
        seed: int | None = None,
        clip_grad_norm: float | None = None,
        grad_scaler: torch.amp.GradScaler | None = None,
        on_gradients: Callable[[nn.Module], None] | None = None,
        on_nan: str = "raise",
        backward: Callable[[torch.Tensor], None] = torch.Tensor.backward,
        collate_fn: Collate | None = None,
        sampler: Sampler | torch.utils.data.Sampler[int] | None = None,
        drop_last: bool = False,
        loader_workers: int | None = None,
        on_step: Callable[[Trainer, StepLoss], object] | Sequence[Callable[[Trainer, StepLoss], object]] = (),
        loggers: Sequence[Tool] = (),
    ) -> None:
        self._membership = membership = solo.current()
        state = tuple(state) if isinstance(state, list | tuple) else (state,)
        instruments: Instruments = membership.job.instruments or Instruments()
        schedule = preparation.batch_schedule(membership.job, batch_size, virtual_nodes, instruments)
        sizes = schedule.at(0)
        membership.mapping(len(sizes))  # refuses too many devices before anything else is done
        checks.check_choices(reduction, on_nan, loader_workers, clip_grad_norm)
        staging = None
        if stages is not None:
            refused = {
                "a model": model is not None,
                "reduction='fast'": reduction != "exact",
                "on_gradients=": on_gradients is not None,
                "backward=": backward is not torch.Tensor.backward,
                "sharding=": sharding != "none",
            }
            given = (stages, tied or getattr(stages, "tied", {}), optimizer, loss_fn, copies, pipeline, recompute)
            staging = Staging.of(*given, refused, membership.job)
            model, phases = nn.Module(), {}
            optimizers: Optimizers = (staging.optimizer.whole,)
            state = items_of_state(state, staging.optimizer.whole)
        else:
            given_alone = {"tied=": bool(tied), "recompute=": recompute, "pipeline=": pipeline != "1f1b"}
            refuse_without_stages(membership.job, given_alone)
            checks.check_sharding(sharding, copies, reduction, optimizer, on_gradients, membership.job)
            model, phases = as_module(model), phases_of(optimizer, loss_fn)
            optimizers = all_optimizers(phases)
            checks.check_model(model)
            checks.check_optimizers(optimizers, model)
        checks.check_state(state, optimizers)
        if reduction == "exact":
            checks.check_compiled(model, schedule.all_sizes, [phase.loss_fn for phase in phases.values()])
        parts = Parts(model, state)
        device = preparation.prepare_device(membership, parts, (*optimizers, *state), reduction)
        self._peers = peers = Peers.of(membership)
        peers.trainers += 1
        number = peers.trainers
        self._recorded = Recorded(membership)
        arguments = derive(0, reduction, on_nan, repr(schedule), repr(seed))
        self._seed = preparation.agreed_seed(peers, self._recorded, seed, arguments)
        if staging is None:
            preparation.share_initial_model(peers, model)
        self._loading = Loading(schedule, self._seed, device, collate_fn, sampler, drop_last, loader_workers)
        self._pace = instruments.pace(device)
        shards = Shards(model, optimizers, copies, len(sizes), peers) if sharding == "state" else None
        peers.may_leave_early = peers.may_leave_early and shards is None
        self._live = assembly.live_state(
            parts, optimizers, state, grad_scaler, reduction, phases, len(sizes), shards, peers
        )
        other_optimizers.declare((*optimizers, *state))
        undeclared = [UndeclaredState(phase.loss_fn, parts, state) for phase in phases.values()]
        settings = partial(
            StepSettings,
            seed=self._seed,
            virtual_nodes=len(sizes),
            trainer=number,
            clip_grad_norm=clip_grad_norm,
            on_nan=on_nan,
            mixed=membership.job.mixed,
            on_gradients=on_gradients,
            backward=backward,
        )
        self._runners: dict[str, MakesSteps] = {
            **assembly.step_runners(self._live, phases.values(), undeclared, settings, peers, self._pace)
        }
        runs: inference.Inference | StagedInference = inference.Inference(parts, state, self._seed, peers)
        nodes: Callable[[], Sequence[int]] = partial(peers.nodes, len(sizes))
        grid: StagedState | None = None
        if staging is not None:
            staged = StagedEngine(
                staging, self._live, peers, device, self._seed, len(sizes), number, clip_grad_norm, on_nan
            )
            self._live, self._runners, runs = staged.live, {"": staged.runner}, staged.inference
            nodes, grid = staged.state.nodes, staged.state
        self._on_step = (on_step,) if callable(on_step) else tuple(on_step)
        facts = run_facts.of_job(self._seed, schedule) | (staging.facts if staging is not None else {})
        live, self._loop = self._live, Loop()
        self._journal = Journal(peers, number, len(sizes), loggers, grid)
        self._checkpoints = Checkpoints(membership.job, facts, live, self._loop, peers, self._recorded)
        self._boundary = Boundary(live, self._loop, peers, self._recorded, self._checkpoints, self._journal)
        comparisons = Comparisons(live, self._loop, peers, undeclared, self._journal)
        self._resuming = Resuming(facts, live, self._loop, self._recorded, comparisons, self._journal)
        self._entrance = Entrance(
            number,
            live,
            self._loop,
            peers,
            self._recorded,
            self._checkpoints,
            self._boundary,
            comparisons,
            self._resuming,
            self._journal,
        )
        runner = next(iter(self._runners.values()))
        self._passes = Passes(
            Engine(peers, runner, self._pace, len(sizes), live, nodes, self._boundary.settle, staging),
            instruments,
            self._loop,
            self._loading,
            self._entrance,
            self._boundary,
            comparisons,
            self._checkpoints,
            self._journal,
        )
        self._calls = SharedCalls(runs, self._loop, peers, self._recorded, self._loading, self._journal)
        count = sum(p.numel() for p in model.parameters()) if staging is None else staging.parameters
        membership.new_trainer(number, sizes, count)
        if not membership.joining:
            comparisons.compare("Trainer", "at the start, although vf.seed was called")
            self._journal.run_started(
                {
                    **run_facts.environment(device),
                    "reduction": reduction,
                    **facts,
                    "optimizer": run_facts.optimizer_settings(optimizers),
                    "seeded": seeded() is not None,
                    "initial_digest": self.digest(),
                }
            )

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer; with stages the job's, with the groups and settings of all weights but none of their state.

        A Trainer that has phases has several: this is the first one's.
        """
        return self._live.optimizers[0]

    @property
    def state(self) -> tuple[Any, ...]:
        """The items of ``state=``, in order: with stages, also what its functions have made of the optimizer."""
        return self._live.state

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
        self._entrance.enter_loop()
        self._loop.epochs = count
        try:
            for epoch in range(self._loop.position.next_epoch, count):
                self._entrance.begin_epoch(epoch)
                reseed(derive(self._seed, "epoch", epoch))
                yield epoch
                self._loop.finish_epoch()
                self._checkpoints.complete_saves()
            self._boundary.stop_if_orphaned()
        finally:
            self._entrance.leave_loop()

    def batches(self, data: Data) -> Iterator[GlobalBatch]:
        """The global batches of this epoch: for ``step``, once each, from where the job stands.

        *data* is a map-style dataset, several of them (``vf.zipped``), a stream that says how many examples it has, or
        a DataLoader, whose batches are then the global ones.
        """
        return self._passes.batches(lambda: self._loading.source(data))

    def steps(self, count: int, data: Callable[[int], Any] | Data) -> Generator[GlobalBatch]:
        """A number of global batches, for loops that count steps and not epochs. It takes the place of ``epochs``.

        *data* is a dataset or stream, which is passed over again and again, or a function: ``batch_fn(size)`` returns
        a shard of *size* examples, with all generators seeded by the step and the virtual node.
        """
        if count < 1:
            raise ConfigError(f"trainer.steps got {count} steps, expected at least 1")
        if self._loop.is_resumable is not None:
            raise ConfigError(
                "trainer.steps comes after or within another loop of this Trainer. It must be its one loop: else "
                "there is nothing left to do. Count all steps in one call, or use epochs and batches."
            )
        for _ in self.epochs(1):
            yield from self._passes.batches(lambda: self._loading.source_of_steps(data, count))

    def step(self, batch: GlobalBatch, phase: str = "") -> StepLoss:
        """Train on one global batch; return its mean loss, with other metrics of ``loss_fn``, equal on every worker.

        A Trainer that has phases makes a step of the one that is named.
        """
        return self._step(batch, phase, update=True)

    def _step(self, batch: GlobalBatch, phase: str, *, update: bool) -> StepLoss:
        feed = self._passes.feed_of(batch)
        check_phase(phase, self._runners)
        if not self._live.parts.model.training:
            self._journal.warn_once(
                "trainer.step trains a model that is in eval mode: without dropout, and with batch norm's running "
                "statistics. If a test of your own called model.eval(), call model.train() after it; "
                "trainer.evaluate(dataset, metric_fn) sets the mode back by itself."
            )
        started = time.perf_counter()
        try:
            with self._peers.noting_errors(self.global_step):
                result = self._runners[phase].run(batch, self.global_step, feed, update=update)
        finally:
            reseed(derive(self._seed, "after", batch.epoch, batch.step))
        seconds = time.perf_counter() - started
        chain = self._journal.step_done(self._loop.position, batch, result, seconds)
        self._loop.complete_step(batch.step, chain)
        self._membership.report_pace(self.global_step, self._pace.wave_seconds, self._pace.overran)
        loss = StepLoss(result.loss, result.metrics)
        for call in self._on_step:
            call(self, loss)
        return loss

    def fit(
        self,
        dataset: Data,
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

    def evaluate(self, dataset: Any, metric_fn: inference.MetricFn, *, name: str | None = None) -> float:
        """The mean of a metric over *dataset*; ``metric_fn(model, batch)`` returns ``(total, weight)``.

        It is recorded under *name*, or under that of the function.
        """
        name = name or getattr(metric_fn, "__name__", "evaluated").strip("<>")
        return self._calls.evaluate(dataset, metric_fn, name)

    def predict(self, dataset: Any, predict_fn: inference.PredictFn = inference.default_predict) -> Any:
        """The model's outputs for every example of *dataset*, in its order, on every worker."""
        return self._calls.predict(dataset, predict_fn)

    def digest(self) -> str:
        """sha256 over the model, its buffers and the optimizer's state, and over the modules in ``state=``.

        With stages or ``sharding="state"`` all workers have to call it: no one of them holds everything.
        """
        return job_digest(self._live, self._loop, self._peers)

    def save(self, path: str | Path) -> None:
        """Write the job's state, so that any number of devices can go on from it.

        A save inside the loop over ``batches`` resumes at the next step; one after it counts the epoch as finished.
        """
        self._recorded(lambda: self._save(Path(path)))

    def _save(self, path: Path) -> None:
        self._checkpoints.save(path)
        self._journal.saved(self.global_step, path)

    def load(self, path: str | Path, *, force: bool = False) -> None:
        """Go on from a checkpoint. *force* takes the state of a job with another seed or batch into this one."""
        if not self._membership.joining:  # else the job has long gone on from there
            self._resuming.load(Path(path), force=force)

    def export(self, path: str | Path) -> None:
        """Write the model's plain ``state_dict``, for use without VirtualFlow, and without an accelerator.

        With stages, it is that of an ``nn.ModuleList`` or ``nn.Sequential`` of them.
        """
        if (files := self._live.files) is not None:
            self._recorded(lambda: files.export(Path(path), self.global_step))
            return
        model = getattr(self._live.parts.model, "_orig_mod", self._live.parts.model)
        write = lambda: checkpoint.write_atomically(Path(path), checkpoint.on_host(model.state_dict()))  # noqa: E731
        self._recorded(lambda: self._checkpoints.write_once("export", write))

    # For loops that are not the Trainer's: lightning/ and transformers/ are built on these.

    def enter(self) -> bool:
        """Join or resume the job outside of ``epochs``, for a loop that is not the Trainer's; ``leave`` ends it.

        Return whether the job has a past: this worker then has its state, and ``position`` says where it stands.
        """
        return self._entrance.enter_other_loop()

    def leave(self) -> None:
        """The loop that was entered has ended."""
        self._boundary.stop_if_orphaned()
        self._entrance.leave_loop()

    @property
    def position(self) -> Position:
        """Where the job stands: *step* of *epoch* comes next, unless the epoch is finished."""
        return replace(self._loop.position)

    def open_pass(self, data: Any, epoch: int, epochs: int = 1) -> OpenPass:
        """Pass number *epoch* of *epochs* over *data*: the batches are for a loop that has been entered."""
        return self._passes.open(data, epoch, epochs)

    def gradients(self, batch: GlobalBatch, phase: str = "") -> StepLoss:
        """A step without its update: every parameter has the global batch's gradient in ``.grad``, on every worker.

        The update is the caller's, before the next batch, and the same on all workers; clipping, too. With a
        ``grad_scaler`` the gradients are still scaled.
        """
        checks.check_not_sharded(self._live.shards, "trainer.gradients")
        return self._step(batch, phase, update=False)

    def once(self, function: Callable[[], object]) -> None:
        """Have the lead worker call *function*, such as one that writes a file; return when all know that it is done.

        If the lead is lost meanwhile, the next one calls it again.
        """
        self._calls.once(function)

    def broadcast(self, value: Any) -> Any:
        """The lead worker's *value* on every worker: tensors, plain values, and dicts, lists and tuples of them."""
        return self._calls.broadcast(value)

    def gather(self, value: Any) -> list[Any]:
        """Every worker's *value*, on every worker, for what some of them alone can know: as ``broadcast`` takes it.

        How many there are depends on the devices: what is made of them must not.
        """
        return self._calls.gather(value)

    def map(
        self,
        data: Any,
        function: Callable[[nn.Module, Any], Any],
        *,
        batch_size: int | None = None,
        collate_fn: Collate | None = None,
    ) -> list[Any]:
        """``function(model, batch)`` for every shard of *data*, in order, on every worker, without gradients.

        Shards are those of the virtual nodes, or of *batch_size* examples each. Results are tensors and plain values.
        With stages, the function gets the last one's output, and the batch.
        """
        return self._calls.map(data, function, batch_size, collate_fn)

    def state_dict(self) -> dict[str, Any]:
        """What a framework's own checkpoint lacks, besides model and optimizer, to go on with the same bits."""
        return self._resuming.own_state()

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from what ``state_dict`` returned. Raises CheckpointError if it is of another job."""
        self._resuming.put_own_state(saved)
