"""The Trainer: what a user's script talks to. It owns the position in the data and hands the work to the rest."""

from __future__ import annotations

import contextlib
import copy
import gc
import secrets
import time
import warnings
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from virtualflow.core.certificate import EMPTY_CHAIN, extend_chain
from virtualflow.core.membership import Group
from virtualflow.core.seeds import derive
from virtualflow.core.sharding import Epoch, GlobalBatch, Sampler, node_sizes
from virtualflow.errors import CheckpointError, ConfigError
from virtualflow.events import (
    EpochEnded,
    EpochStarted,
    Evaluated,
    EventLog,
    Loaded,
    Regrouped,
    ReplicasAligned,
    RunStarted,
    Saved,
    StepDone,
    stream_of,
)
from virtualflow.train import (
    allocator,
    checkpoint,
    checks,
    committed,
    inference,
    other_optimizers,
    profiler,
    run_facts,
    solo,
)
from virtualflow.train.audit import Audit, Exchange
from virtualflow.train.buffers import Buffers
from virtualflow.train.bystanders import Bystanders
from virtualflow.train.committed import Live, Position
from virtualflow.train.data import Collate, Dataset, Feed, length_of
from virtualflow.train.early_results import Recorded
from virtualflow.train.loading import Loading, requests
from virtualflow.train.pace import Pace
from virtualflow.train.peers import Peers
from virtualflow.train.reduction import ExactReduction, FastReduction
from virtualflow.train.replicas import Replicas
from virtualflow.train.samples import Samples
from virtualflow.train.saving import Keeper, Mark
from virtualflow.train.seeding import generators_kept, make_deterministic, pin_threads, reseed, seeded
from virtualflow.train.settings import Settings
from virtualflow.train.state import Parts, contents, digest, named_parameters, tensors_in
from virtualflow.train.step import LossFn, StepResult, StepRunner, StepSettings
from virtualflow.train.variables import MOST_NAMED, Variables

COMPARE_EVERY = 100  # steps, on mixed device types


@dataclass(frozen=True, slots=True)
class EpochReport:
    """What ``fit`` tells of one epoch."""

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
        self._sizes = self._planned_sizes(batch_size) or node_sizes(batch_size, virtual_nodes)
        self._membership.mapping(len(self._sizes))  # refuses too many devices before anything else is done
        checks.check_choices(reduction, on_nan, loader_workers, clip_grad_norm)
        checks.check_model(model)
        checks.check_optimizer(optimizer, model)
        checks.check_state(state, optimizer)
        if reduction == "exact":
            checks.check_compiled(model, self._sizes, loss_fn)
        self._device = self._prepare_device(model, reduction)
        self._peers = Peers.of(self._membership)
        self._peers.trainers += 1
        self._number = self._peers.trainers
        self._recorded = Recorded(self._membership)
        self._seed = self._choose_seed(seed, derive(0, reduction, on_nan, repr(self._sizes), repr(seed)))
        self._share_initial_model(model)
        self._loading = Loading(self._sizes, self._seed, self._device, collate_fn, sampler, drop_last, loader_workers)
        self._pace = Pace(self._membership.job.emulated)
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
        self._exchange = Exchange(self._membership) if self._membership.job.audit else None
        self._replicas = Replicas(self._live, self._peers, self._bystanders)
        self._keeper = Keeper(self._membership.job, self._job_facts(), self._live, self._peers, self._recorded)
        self._inference = inference.Inference(parts, state, self._seed, self._peers)
        self._position = Position(chain=EMPTY_CHAIN)
        self._top: dict[str, Any] | None = None  # the settings as they were at the top of the epoch
        self._entering: dict[str, Any] | None = None  # the state with which this worker comes into a running epoch
        self._resumed = False
        self._resumable: bool | None = None  # as soon as it trains: whether it is the script's first that does
        self._end_of_pass: Mark | None = None
        self._in_epochs = False
        self._pass_begun = False
        self._said: set[str] = set()
        self._saved: dict[Path, list[tuple[str, str]]] = {}  # after this epoch's batches: with which settings
        self._feed: Feed | None = None
        self._fed_generation = -1
        self._changes_told = 0
        self._events = EventLog(self._stream(), lambda: self.is_lead)
        if not self._membership.joining:
            self._write_facts(reduction)

    @property
    def is_lead(self) -> bool:
        """Whether this worker is the one to print and write files."""
        return self._peers.is_lead

    @property
    def global_step(self) -> int:
        """How many steps the job has made."""
        return self._position.global_step

    @property
    def events_path(self) -> Path | None:
        """The job's event stream, on the lead worker: what ``vf verify`` compares."""
        return self._events.path

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs up to *count* that are still to do: after ``load``, those after the checkpoint."""
        if self._resumable is None:
            self._resumable = self._membership.begin_training()
            if self._resumable:
                self._peers.keep_at_the_end = self._keep_end_of_pass
        self._live.variables.before_the_loop()
        if self._membership.joining:
            parameters = sum(parameter.nbytes for parameter in self._live.parts.parameters().values())
            allocator.have_ready(4 * parameters)  # the state that comes, with an optimizer's, and the sums
            self._peers.join(self._receive_state)
        elif self._membership.job.resume_from is not None and self._resumable and self.global_step == 0:
            self.load(self._membership.job.resume_from)
        self._epochs_in_all = count
        self._peers.under_way.add(self._number)
        try:
            for epoch in range(self._position.next_epoch, count):
                self._begin_epoch(epoch)
                yield epoch
                self._position.finished = True
                self._complete_saves()
            if self._membership.orphaned:
                self._stop_if_told()
        finally:
            self._peers.under_way.discard(self._number)
            self._in_epochs = False
            self._recorded.leave_epochs()

    def _begin_epoch(self, epoch: int) -> None:
        position = self._position
        if epoch != position.epoch or position.finished:
            position.epoch, position.step, position.finished, position.in_pass = epoch, 0, False, False
            self._entering = None
        elif self._entering is not None and self._entering["top"] is not None:
            # What the script does at the top of this epoch starts from where it started then.
            self._live.settings.put(self._entering["top"], on_the_way=True)
        self._top = self._live.settings.take_copy()
        self._in_epochs, self._pass_begun = True, False
        self._recorded.new_section()
        reseed(derive(self._seed, "epoch", epoch))

    def batches(self, dataset: Dataset) -> Iterator[GlobalBatch]:
        """The global batches of this epoch: for ``step``, once each, from where the job stands."""
        passing = self._batches(dataset)
        self._passing = weakref.ref(passing)
        return passing

    def _batches(self, dataset: Dataset) -> Generator[GlobalBatch]:
        if not self._in_epochs or self._pass_begun:
            raise ConfigError(
                "trainer.batches(dataset) goes once into each round of `for epoch in trainer.epochs(n):`, because an "
                "epoch is one pass over one dataset. To train on several, concatenate them "
                "(torch.utils.data.ConcatDataset)."
            )
        self._pass_begun = True
        epoch = self._loading.epoch(dataset, self._position.epoch)
        self._feed = feed = self._loading.kept_feed(dataset)
        self._live.samples.begin(feed, epoch.number, length_of(dataset, "batches"))
        self._enter_pass()
        if self._membership.job.profiling is not None:
            length = length_of(dataset, "batches")
            profiler.measure(
                self._peers, self._runner, self._pace, feed, length, len(self._sizes), self._live, self._settle
            )
        first = self._position.step
        self._fed_generation = -1
        self._events.write(EpochStarted(epoch.number, self._epochs_in_all, epoch.steps, first))
        try:
            for step in range(first, epoch.steps):
                other_optimizers.watch(training=True)
                self._position.step = step  # the script may have skipped a batch
                self._cross_boundary(epoch, step, feed)
                reseed(derive(self._seed, "batch", epoch.number, step))
                yield epoch.batch(step)
            self._close_epoch(epoch)
        finally:
            other_optimizers.watch(training=False)
            feed.close()
            self._position.finished = True

    def _enter_pass(self) -> None:
        """The script is where the job is: from here on this worker has the job's state."""
        self._live.variables.enter_pass()
        if self._entering is not None and self._position.in_pass:
            committed.put(self._live, self._entering)
            self._replicas.equal_at = self.global_step
            if not self._membership.job.mixed:  # their kernels round differently
                than = "when the checkpoint was written" if self._resumed else "on the other workers"
                where = f"on device {self._membership.device} than {than}"
                self._live.samples.check(self._entering.get("samples", {}), where)
        by_hand = self._resumed and self._membership.job.resume_from is None  # whose script has its own ways
        if self._entering is not None and not by_hand:
            self._tell_of_variables(self._live.variables.missing(self._entering.get("variables", {})))
        if self._entering is not None and self._resumed and self._position.step and self._is_enumerated():
            self._say_once(
                f"this job is resumed at step {self._position.step} of an epoch, while enumerate(trainer.batches(...)) "
                "counts from 0. If anything but what is printed depends on that number (a schedule, a rate), use "
                "batch.step, which counts within the epoch, or trainer.global_step."
            )
        self._entering = None
        self._position.in_pass = self._recorded.in_pass = True

    def _is_enumerated(self) -> bool:
        """Whether the script counts the batches by itself."""
        return any(isinstance(holder, enumerate) for holder in gc.get_referrers(self._passing()))

    def _tell_of_variables(self, lost: list[str]) -> None:
        how = "this job is resumed" if self._resumed else f"device {self._membership.device} has joined a running job"
        names = ", ".join(map(repr, lost[:MOST_NAMED])) + (" and others" if len(lost) > MOST_NAMED else "")
        if lost and (self.is_lead or not self._resumed):
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
            self._say_once(
                "trainer.step trains a model that is in eval mode: without dropout, and with batch norm's running "
                "statistics. If a test of your own called model.eval(), call model.train() after it; "
                "trainer.evaluate(dataset, metric_fn) sets the mode back by itself."
            )
        started = time.perf_counter()
        try:
            result = self._runner.run(batch, self.global_step, self._feed)
        finally:
            reseed(derive(self._seed, "after", batch.epoch, batch.step))
        self._record(batch, result, time.perf_counter() - started)
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
        position = Position(**saved["position"])
        inside = position.in_pass and not position.finished
        if inside:
            # For the script, which may look at it. It comes once more where the loop is, after what the script does at
            # the top of the epoch, which may give the model the form that this needs.
            with contextlib.suppress(CheckpointError):
                committed.put(self._live, copy.deepcopy(saved))
        else:
            committed.put(self._live, saved)
        self._position, self._entering, self._resumed = position, saved, True
        self._recorded.replay([*saved["between"], *(saved["results"] if inside else [])])
        self._check_replicas("load", "after load")
        self._events.write(Loaded(self.global_step, str(path), self._position.chain))

    def export(self, path: str | Path) -> None:
        """Write the model's plain ``state_dict``, for use without VirtualFlow."""
        model = getattr(self._live.parts.model, "_orig_mod", self._live.parts.model)
        write = lambda: checkpoint.write_atomically(Path(path), model.state_dict())  # noqa: E731
        self._recorded(lambda: self._keeper.write_once("export", Path(path), self._position, write))

    def _planned_sizes(self, batch_size: int) -> tuple[int, ...] | None:
        """The node sizes of the job's plan, if it has one."""
        sizes = self._membership.job.node_sizes
        if sizes is not None and sum(sizes) != batch_size and self._membership.job.profiling is None:
            raise ConfigError(
                f"the plan is for a batch of {sum(sizes)}, but the script has batch_size={batch_size}. Make the plan "
                f"again: vf solve --batch-size {batch_size} ..."
            )
        return sizes

    def _prepare_device(self, model: nn.Module, reduction: str) -> torch.device:
        if self._membership.job.device_type == "cuda":
            model.to("cuda")
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        told = seeded()
        pin_threads(told.threads_per_device if told else self._membership.job.threads_per_device)
        if reduction == "exact":
            make_deterministic(device)
        return device

    def _choose_seed(self, seed: int | None, arguments: int) -> int:
        told = seeded()
        resumed = self._membership.job.resume_from
        if seed is not None or told is not None:
            chosen = seed if seed is not None else told.seed if told is not None else 0
        else:
            chosen = checkpoint.read(resumed)["job"]["seed"] if resumed is not None else secrets.randbits(32)
        return int(self._recorded(lambda: self._peers.from_lead("Trainer", 0, lambda: chosen, arguments)))

    def _share_initial_model(self, model: nn.Module) -> None:
        if seeded() is None and not self._membership.joining:
            tensors = list(tensors_in([dict(model.named_parameters()), dict(model.named_buffers())]))
            self._peers.share("Trainer", tensors)

    def _write_facts(self, reduction: str) -> None:
        self._check_replicas("Trainer", "at the start, although vf.seed was called")
        facts = {
            **run_facts.environment(self._device),
            "reduction": reduction,
            **self._job_facts(),
            "seeded": seeded() is not None,
            "initial_digest": self.digest(),
        }
        devices, mapping = self._membership.devices, self._membership.mapping(len(self._sizes))
        self._events.write(RunStarted(facts, list(devices), list(mapping.devices), mapping.waves))

    def _job_facts(self) -> dict[str, Any]:
        sizes = self._sizes
        return {"seed": self._seed, "batch_size": sum(sizes), "virtual_nodes": len(sizes), "node_sizes": list(sizes)}

    def _stream(self) -> Path:
        parameters = sum(parameter.numel() for parameter in self._live.parts.model.parameters())
        self._membership.new_trainer(self._number, self._sizes, parameters)
        return stream_of(self._membership.job.folder, self._number)

    def _settle(self) -> None:
        """Between two steps: the one place where membership changes by plan."""
        self._stop_if_told()
        every = self._membership.job.checkpoint_every
        if every and self.is_lead and self.global_step and self.global_step % every == 0:
            try:
                self._keep()
            except CheckpointError as error:  # a full disk: the next one may go better, and until then the last counts
                warnings.warn(f"the job goes on without a checkpoint of this step: {error}", stacklevel=2)
        if self._membership.change_is_due:
            self._peers.change(self._send_state)
            self._stop_if_told()
        self._tell_of_changes()

    def _stop_if_told(self) -> None:
        if self._membership.must_stop:
            if self.is_lead or self._membership.orphaned:  # the lead may be gone, too
                self._keep()
            self._membership.stop()

    def _cross_boundary(self, epoch: Epoch, step: int, feed: Feed) -> None:
        self._settle()
        if self._exchange is not None:
            self._exchange.cross_boundary(epoch, step, self._epochs_in_all)
        if self._membership.job.mixed and self.global_step and self.global_step % COMPARE_EVERY == 0:
            self._check_replicas("step", f"at step {self.global_step}")
        if self._fed_generation != self._membership.generation:
            feed.announce(requests(epoch, step, self._peers.nodes(len(self._sizes))))
            self._fed_generation = self._membership.generation

    def _tell_of_changes(self) -> None:
        for change in self._membership.changes[self._changes_told :]:
            self._events.write(
                Regrouped(
                    change.generation,
                    self.global_step,
                    change.cause,
                    list(change.devices),
                    list(change.joined),
                    list(change.left),
                    list(self._membership.mapping(len(self._sizes)).devices),
                    change.pause_ms,
                )
            )
        self._changes_told = len(self._membership.changes)

    def _say_once(self, text: str) -> None:
        if self.is_lead and text not in self._said:
            self._said.add(text)
            warnings.warn(text, stacklevel=3)

    def _keep(self) -> None:
        """Write an automatic checkpoint, for the one Trainer that can be resumed."""
        if len(self._peers.under_way) > 1:
            raise CheckpointError(
                "a job that trains with several Trainers at a time can't be resumed in the middle: a checkpoint holds "
                "where one of them stands. Started again from the beginning, it gives the same models; trainer.save "
                "writes each of them."
            )
        if self._resumable:
            self._keeper.keep(self._position, self._top)

    def _keep_end_of_pass(self) -> None:
        """The script has ended, and nobody was there to be told: what came after its last step is done again."""
        mark = self._end_of_pass
        if mark is None or mark.position.global_step != self.global_step:
            return  # nothing was trained that is not kept
        if mark.digest != self.digest():
            raise CheckpointError(
                f"step {self.global_step} can't be gone on from: the script has changed the model after its last step."
            )
        self._keeper.keep_marked(mark)

    def _send_state(self, group: Group) -> None:
        contents = committed.take(self._live, self._position) | {"top": self._top}
        contents |= {"agreements": self._peers.agreements, "agreed": self._peers.last}
        contents |= {"between": self._recorded.between, "results": self._recorded.section}
        committed.send(contents, group)

    def _receive_state(self, group: Group) -> None:
        contents = committed.receive(group)
        self._position = Position(**contents["position"])
        self._entering = contents  # put in where the loop is: until then the script runs as it did on the others
        self._peers.agreements, self._peers.last = contents["agreements"], contents["agreed"]
        self._recorded.replay([*contents["between"], *contents["results"]])

    def _evaluate(self, dataset: Dataset, metric_fn: inference.MetricFn) -> float:
        pass_ = inference.Pass(length_of(dataset, "evaluate"), self._sizes)
        with self._loading.feed(dataset) as feed:
            value = self._inference.evaluate(pass_, feed, metric_fn, self.global_step)
        self._events.write(Evaluated(self.global_step, value))
        return value

    def _save(self, path: Path) -> None:
        self._keeper.save(path, self._position, self._top)
        if self._in_epochs and self._position.finished:
            self._saved[path] = list(self._live.settings.described())
        self._events.write(Saved(self.global_step, str(path)))

    def _complete_saves(self) -> None:
        """A save after the batches counts the epoch as finished, so what the script did after it belongs to it too."""
        saved, self._saved = self._saved, {}
        for path, settings in saved.items():
            if settings != list(self._live.settings.described()):
                self._keeper.amend(path, self._position)

    def _record(self, batch: GlobalBatch, result: StepResult, seconds: float) -> None:
        loss_bits = result.loss.hex()
        norm_bits = result.gradient_norm.hex() if result.gradient_norm is not None else None
        ids = f"{derive(0, *result.ids):08x}"
        position = self._position
        position.chain = extend_chain(position.chain, loss_bits, norm_bits, ids)
        self._events.write(
            StepDone(
                step=position.global_step,
                epoch=batch.epoch,
                loss=result.loss,
                loss_bits=loss_bits,
                norm_bits=norm_bits,
                ids=ids,
                chain=position.chain,
                examples=batch.examples,
                seconds=round(seconds, 6),
                attempts=result.attempts,
                accumulator=result.accumulator,
            )
        )
        position.step = batch.step + 1
        position.global_step += 1

    def _close_epoch(self, epoch: Epoch) -> None:
        self._bystanders.check("it has changed since the first step")
        value = self._check_replicas("the end of an epoch", f"at the end of epoch {epoch.number}")
        if difference := self._replicas.odd_number("the end of an epoch", self.global_step):
            self._say_once(difference)
        self._check_samples()
        self._tell_of_changes()  # the last step of a job has no boundary after it
        self._events.write(EpochEnded(epoch.number, self.global_step - 1, value))
        self._position.step = epoch.steps
        self._end_of_pass = self._keeper.mark(self._position, self._top, value)

    def _check_samples(self) -> None:
        """Whoever came between two epochs has trained on the dataset that he made: is it that of the others?"""
        if any(change.joined for change in self._membership.changes) and not self._membership.job.mixed:
            mine = self._live.samples.take() if self.is_lead else {}
            everyone = self._peers.exchanged("the end of an epoch", self.global_step, mine)
            where = f"on device {self._membership.device} than on device {self._membership.devices[0]}"
            self._live.samples.check(everyone[0], where)

    def _check_replicas(self, call: str, when: str) -> str:
        if odd := self._replicas.odd(call, self.global_step):
            if self._membership.job.mixed:  # their kernels round differently
                self._align_replicas(call, odd)
            else:
                raise self._replicas.refuse(call, self.global_step, when, odd)
        return self.digest()

    def _align_replicas(self, call: str, odd: list[int]) -> None:
        """Give every worker the lead's model and optimizer."""
        tensors = [value for _, value in contents(self._live.parts, self._live.optimizer) if isinstance(value, Tensor)]
        self._peers.share(call, tensors)
        self._events.write(ReplicasAligned(self.global_step, [str(rank) for rank in odd]))
