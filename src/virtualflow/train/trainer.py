"""The Trainer: what a user's script calls. It takes the script through its loops and delegates the work."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from virtualflow.core.seeds import derive
from virtualflow.core.sharding import GlobalBatch, Sampler
from virtualflow.errors import ConfigError
from virtualflow.loggers import Tool
from virtualflow.train import assembly, checkpoint, checks, inference, preparation, run_facts, solo
from virtualflow.train.course import Course
from virtualflow.train.data import Collate, Dataset
from virtualflow.train.instruments import Instruments
from virtualflow.train.loading import Data, Loading
from virtualflow.train.open_pass import OpenPass
from virtualflow.train.phases import LossFn
from virtualflow.train.position import Position
from virtualflow.train.seeding import reseed
from virtualflow.train.sharded.collection import job_digest
from virtualflow.train.shared_calls import SharedCalls
from virtualflow.train.stages.cell_runs import StageLoss
from virtualflow.train.stages.stage_cut import Stages
from virtualflow.train.step_calls import StepCalls
from virtualflow.train.step_metrics import StepLoss
from virtualflow.train.step_settings import StepChoices
from virtualflow.train.trained import Spread, Trained


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

    *sentinel* is the part of each batch that a second device runs again, to catch one that lies: "1/16", 0.0625.

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
        sentinel: str | float = 0,
    ) -> None:
        self._membership = membership = solo.current()
        instruments: Instruments = membership.job.instruments or Instruments()
        schedule = preparation.batch_schedule(membership.job, batch_size, virtual_nodes, instruments)
        membership.mapping(len(schedule.at(0)))  # refuses too many devices before anything else is done
        choices = StepChoices(reduction, on_nan, clip_grad_norm, grad_scaler, on_gradients, backward, sentinel)
        checks.check_loader_workers(loader_workers)
        spread = Spread(stages, tied, pipeline, recompute, sharding, copies)
        trained = Trained.of(model, optimizer, loss_fn, state, spread, choices, membership.job)
        if choices.is_exact:
            checks.check_compiled(trained.model, schedule.all_sizes, trained.loss_fns)
        settled = preparation.prepare(membership, trained, choices, schedule, seed, instruments)
        self._peers, self._recorded, self._seed = settled.peers, settled.recorded, settled.seed
        self._loading = Loading(schedule, settled.seed, settled.device, collate_fn, sampler, drop_last, loader_workers)
        engine = assembly.assemble(trained, choices, settled)
        facts = run_facts.of_job(settled.seed, schedule) | trained.facts
        self._live = engine.live
        self._course = Course.of(facts, engine, settled, self._loading, instruments, loggers)
        self._steps = StepCalls(engine, self._course, settled, instruments)
        self._calls = SharedCalls(
            engine.inference, self._course.loop, self._peers, self._recorded, self._loading, self._course.journal
        )
        self._keep_files = instruments.keep_files
        self._on_step = (on_step,) if callable(on_step) else tuple(on_step)
        membership.new_trainer(settled.number, schedule.at(0), trained.parameters)
        if not membership.joining:
            self._course.comparisons.compare("Trainer", "at the start, although vf.seed was called")
            self._course.journal.run_started(
                run_facts.of_run(settled.device, reduction, facts, trained.optimizers, self.digest())
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
        return self._course.loop.position.global_step

    @property
    def events_path(self) -> Path | None:
        """The job's event stream, on the lead worker: what ``vf verify`` compares."""
        return self._course.journal.path

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs up to *count* that are still to do: after ``load``, those after the checkpoint."""
        self._course.entrance.enter_loop()
        self._course.loop.epochs = count
        try:
            for epoch in range(self._course.loop.position.next_epoch, count):
                self._course.entrance.begin_epoch(epoch)
                reseed(derive(self._seed, "epoch", epoch))
                yield epoch
                self._course.loop.finish_epoch()
                self._course.checkpoints.complete_saves()
            self._course.boundary.stop_if_orphaned()
        finally:
            self._course.entrance.leave_loop()

    def batches(self, data: Data) -> Iterator[GlobalBatch]:
        """The global batches of this epoch: for ``step``, once each, beginning with the job's next step.

        *data* is a map-style dataset, several of them (``vf.zipped``), a stream that says how many examples it has, or
        a DataLoader, whose batches are then the global ones.
        """
        return self._course.passes.batches(lambda: self._loading.source(data))

    def steps(self, count: int, data: Callable[[int], Any] | Data) -> Generator[GlobalBatch]:
        """A number of global batches, for loops that count steps and not epochs. It takes the place of ``epochs``.

        *data* is a dataset or stream, which is passed over again and again, or a function: ``batch_fn(size)`` returns
        a shard of *size* examples, with all generators seeded by the step and the virtual node.
        """
        if count < 1:
            raise ConfigError(f"trainer.steps got {count} steps, expected at least 1")
        if self._course.loop.is_resumable is not None:
            raise ConfigError(
                "trainer.steps comes after or within another loop of this Trainer. It must be its one loop: else "
                "there is nothing left to do. Count all steps in one call, or use epochs and batches."
            )
        for _ in self.epochs(1):
            yield from self._course.passes.batches(lambda: self._loading.source_of_steps(data, count))

    def step(self, batch: GlobalBatch, phase: str = "") -> StepLoss:
        """Train on one global batch; return its mean loss, with other metrics of ``loss_fn``, equal on every worker.

        A Trainer that has phases makes a step of the one that is named.
        """
        return self._reported(self._steps.make(batch, phase, update=True))

    def _reported(self, loss: StepLoss) -> StepLoss:
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
        return job_digest(self._live, self._course.loop, self._peers)

    def save(self, path: str | Path) -> None:
        """Write the job's state, so that any number of devices can continue from it.

        A save inside the loop over ``batches`` resumes at the next step; one after it counts the epoch as finished.
        """
        self._recorded(lambda: self._save(Path(path)))

    def _save(self, path: Path) -> None:
        if not self._keep_files:
            return
        self._course.checkpoints.save(path)
        self._course.journal.saved(self.global_step, path)

    def load(self, path: str | Path, *, force: bool = False) -> None:
        """Continue from a checkpoint. *force* takes the state of a job with another seed or batch into this one."""
        if not self._membership.joining:  # a worker that joins gets the job's state, which is newer
            self._course.resuming.load(Path(path), force=force)

    def export(self, path: str | Path) -> None:
        """Write the model's plain ``state_dict``, for use without VirtualFlow, and without an accelerator.

        With stages, it is that of an ``nn.ModuleList`` or ``nn.Sequential`` of them.
        """
        if not self._keep_files:
            self._recorded(lambda: None)
            return
        if (files := self._live.files) is not None:
            self._recorded(lambda: files.export(Path(path), self.global_step))
            return
        model = getattr(self._live.parts.model, "_orig_mod", self._live.parts.model)
        write = lambda: checkpoint.write_atomically(Path(path), checkpoint.on_host(model.state_dict()))  # noqa: E731
        self._recorded(lambda: self._course.checkpoints.write_once("export", write))

    # For loops that are not the Trainer's: lightning/ and transformers/ are built on these.

    def enter(self) -> bool:
        """Join or resume the job outside of ``epochs``, for a loop that is not the Trainer's; ``leave`` ends it.

        Return whether the job has a past: this worker then has its state, and ``position`` says where it stands.
        """
        return self._course.entrance.enter_other_loop()

    def leave(self) -> None:
        """Tell the Trainer that the loop of ``enter`` has ended."""
        self._course.boundary.stop_if_orphaned()
        self._course.entrance.leave_loop()

    @property
    def position(self) -> Position:
        """Where the job stands: *step* of *epoch* comes next, unless the epoch is finished."""
        return replace(self._course.loop.position)

    def open_pass(self, data: Any, epoch: int, epochs: int = 1) -> OpenPass:
        """Pass number *epoch* of *epochs* over *data*: the batches are for a loop that has been entered."""
        return self._course.passes.open(data, epoch, epochs)

    def gradients(self, batch: GlobalBatch, phase: str = "") -> StepLoss:
        """A step without its update: every parameter has the global batch's gradient in ``.grad``, on every worker.

        The update is the caller's, before the next batch, and the same on all workers; clipping, too. With a
        ``grad_scaler`` the gradients are still scaled.
        """
        checks.check_not_sharded(self._live.shards, "trainer.gradients")
        return self._reported(self._steps.make(batch, phase, update=False))

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
        """What a framework's own checkpoint lacks, besides model and optimizer, to continue with the same bits."""
        return self._course.resuming.own_state()

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Continue from what ``state_dict`` returned. Raises CheckpointError if it is of another job."""
        self._course.resuming.put_own_state(saved)
