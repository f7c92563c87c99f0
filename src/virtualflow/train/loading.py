"""How a Trainer turns datasets into epochs and shards: all its arguments about data."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler
from torch.utils.data import Sampler as SamplerObject

from virtualflow.core.batch_schedule import BatchSchedule
from virtualflow.core.seeds import derive
from virtualflow.core.sharding import (
    Draws,
    Epoch,
    EpochPlan,
    Indices,
    PassAfterPass,
    Sampler,
    Steps,
    sampled,
    shuffled,
)
from virtualflow.errors import ConfigError
from virtualflow.streams.cursor import ReadContext
from virtualflow.streams.reader import StreamReader
from virtualflow.streams.stream import Stream
from virtualflow.streams.stream_plans import StreamEpoch, StreamSteps, identity
from virtualflow.streams.zipping import Zipped, ZippedEpoch, ZippedReader
from virtualflow.train import solo
from virtualflow.train.data import Collate, Dataset, Feed, Request, length_of
from virtualflow.train.replay import digest_of
from virtualflow.train.seeding import generators_kept, reseed
from virtualflow.train.sources import DrawnBatches, TrainingData, from_loader, in_order

Data = Dataset | DataLoader[Any] | Stream | Zipped  # what people train on


@dataclass(slots=True)
class Loading:
    """Makes epochs of a dataset, and feeds that load its shards."""

    schedule: BatchSchedule
    seed: int
    device: torch.device
    collate_fn: Collate | None = None
    sampler: Sampler | SamplerObject[Any] | None = None
    drop_last: bool = False
    loader_workers: int | None = None
    _kept: Feed | None = field(default=None, init=False)
    _sampler: Sampler | None = field(default=None, init=False)
    _sampled_twice: bool = field(default=False, init=False)
    _last_reader: StreamReader | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._sampler = as_function(self.sampler) if self.sampler is not None else None

    def source(self, data: Any) -> TrainingData:
        """What ``batches`` got, as the Trainer passes over it."""
        if isinstance(data, DataLoader):
            self._check_unused("a DataLoader, which says so itself")
            self._check_constant("a DataLoader has one batch size for all epochs")
            return from_loader(data, self.schedule.at(0), self.seed)
        if isinstance(data, Stream):
            return TrainingData(self._reader(data), partial(self._epoch_of_stream, data), collate_fn=self.collate_fn)
        if isinstance(data, Zipped):
            first = self.source(data.first)
            reader = ZippedReader(data, self.seed)
            return replace(first, dataset=reader, plan=lambda number: ZippedEpoch(first.plan(number), data))
        length = length_of(data, "batches")
        return TrainingData(data, partial(self._epoch, length), length, self.collate_fn)

    def source_of_steps(self, data: Any, count: int) -> TrainingData:
        """What ``steps`` got: a dataset, a DataLoader, a stream, or a function that draws a shard."""
        self._check_constant("trainer.steps has no epochs")
        sizes = self.schedule.at(0)
        if callable(data) and not hasattr(data, "__getitem__") and not isinstance(data, DataLoader):
            self._check_unused("a function that draws batches")
            return TrainingData(DrawnBatches(data), lambda _: Draws(count, sizes))
        if isinstance(data, DataLoader | Zipped):
            source = self.source(data)
            return replace(source, plan=lambda _: PassAfterPass(count, source.plan))
        if isinstance(data, Stream):
            plan_of_stream = StreamSteps(count, data, sizes)
            return TrainingData(self._reader(data), lambda _: plan_of_stream, collate_fn=self.collate_fn)
        length = length_of(data, "steps")
        if self._sampler is not None:
            return replace(self.source(data), plan=lambda _: PassAfterPass(count, partial(self._epoch, length)))
        plan = Steps(count, length, sizes, self.seed)
        return TrainingData(data, lambda _: plan, length, self.collate_fn)

    def feed(self, dataset: Any, collate_fn: Collate | None, loader_workers: int | None = None) -> Feed:
        """A feed for one pass."""
        devices = len(solo.current().devices) * torch.get_num_threads()
        return Feed(
            dataset,
            collate_fn=collate_fn,
            seed=self.seed,
            loader_workers=self.loader_workers if loader_workers is None else loader_workers,
            device=self.device,
            spare_core=len(os.sched_getaffinity(0)) > devices if hasattr(os, "sched_getaffinity") else False,
        )

    def kept_feed(self, source: TrainingData) -> Feed:
        """The training feed of the epoch that begins, with the dataset as it is now: that of the last one ends."""
        if self._kept is not None:
            self._kept.close()
        self._kept = self.feed(source.dataset, source.collate_fn, source.loader_workers)
        return self._kept

    def dataset_of(self, data: Any, call: str) -> tuple[Any, Collate | None]:
        """The dataset that *call* goes through in its own order, and how its examples are collated."""
        return in_order(data, call) if isinstance(data, DataLoader) else (data, self.collate_fn)

    def _epoch(self, length: int, number: int) -> EpochPlan:
        order = shuffled(self.seed, number, length) if self._sampler is None else self._sampled(number, length)
        sizes = self.schedule.at(number)
        epoch = Epoch(number, order, sizes, drop_last=self.drop_last)
        if epoch.steps == 0:
            raise ConfigError(
                f"an epoch of {len(order)} examples has no step of batch_size={sum(sizes)} with drop_last=True. "
                "Use drop_last=False or a smaller batch."
            )
        return epoch

    def _reader(self, stream: Stream) -> StreamReader:
        """A reader of *stream*: from epoch to epoch it keeps what it knows."""
        if self.sampler is not None:
            raise ConfigError(
                "the Trainer has sampler=, and is to train on a stream, which has an order of its own. Leave sampler= "
                "out; vf.Stream(..., block=n) shuffles blocks of n examples."
            )
        if self._last_reader is None or self._last_reader.stream is not stream:
            context = ReadContext(self.seed, reseed, digest_of)
            folder = hints_folder(solo.current().job.folder, stream)
            nodes = len(self.schedule.at(0))
            reader = StreamReader(stream, nodes, self.schedule.largest_node, context, folder)
            with generators_kept():
                reader.check_repeats()
            self._last_reader = reader
        return self._last_reader

    def _epoch_of_stream(self, stream: Stream, number: int) -> EpochPlan:
        if (counts := stream.counts) is None:
            raise ConfigError(
                "batches got a stream that does not say how many examples it has, so no epoch of it has an end. Say "
                "vf.Stream(..., examples=n) for each shard, or stream.counted(), which reads it once; or train by "
                "steps: `for batch in trainer.steps(n, stream):`."
            )
        sizes = self.schedule.at(number)
        epoch = StreamEpoch(number, stream, counts, sizes, drop_last=self.drop_last)
        if epoch.steps == 0:
            raise ConfigError(
                f"an epoch over a stream of {sum(counts)} examples in {stream.shards} shards has no step of "
                f"batch_size={sum(sizes)}{' with drop_last=True' if self.drop_last else ''}. Check what it reads."
            )
        return epoch

    def _check_constant(self, reason: str) -> None:
        if self.schedule.changes:
            raise ConfigError(
                f"batch_size= changes between epochs, but {reason}. Use one batch size, or loops over epochs and a "
                "dataset or stream: `for epoch in trainer.epochs(n):`, `for batch in trainer.batches(dataset):`."
            )

    def _check_unused(self, data: str) -> None:
        """Refuse what was said of data to the Trainer and can't count for these."""
        given = {"collate_fn": self.collate_fn, "sampler": self.sampler, "drop_last": self.drop_last or None}
        if unused := [name for name, value in given.items() if value is not None]:
            raise ConfigError(f"the Trainer has {unused[0]}=, and is to train on {data}. Leave {unused[0]}= out.")

    def _sampled(self, number: int, length: int) -> Indices:
        """The sampler's order: a function of the seed and the epoch, whatever was drawn before."""
        order = self._drawn(number, length)
        if not self._sampled_twice and not np.array_equal(order, self._drawn(number, length)):
            raise ConfigError(
                f"sampler({number}) gives another order when it is called again for the same epoch, so workers would "
                "train on different examples. Let it depend on the epoch alone: a generator of its own must be made "
                "inside, from the epoch (numpy.random.default_rng(epoch)); those of torch, numpy and random are seeded "
                "before each call."
            )
        self._sampled_twice = True
        reseed(derive(self.seed, "after sampler", number))
        return order

    def _drawn(self, number: int, length: int) -> Indices:
        assert self._sampler is not None
        reseed(derive(self.seed, "sampler", number))
        return sampled(self._sampler, number, length)


def as_function(sampler: Any) -> Sampler:
    """*sampler* as a function of the epoch; a torch Sampler becomes one if it draws from the global generators."""
    if not isinstance(sampler, SamplerObject):
        if not callable(sampler):
            raise ConfigError(
                f"sampler= got a {type(sampler).__name__}, expected a function of the epoch that returns indices "
                "(sampler=lambda epoch: [...]), or a torch Sampler."
            )
        return cast(Sampler, sampler)
    type_name = type(sampler).__name__
    if isinstance(sampler, BatchSampler):
        raise ConfigError(
            f"sampler= got a {type_name}: batches are cut by the Trainer (batch_size=). Pass the inner sampler."
        )
    if isinstance(sampler, DistributedSampler):
        raise ConfigError(
            f"sampler= got a {type_name}, which picks out one worker's part of the data. Leave it out: the Trainer "
            "shuffles and gives each device its own shards."
        )
    for name, generator in vars(sampler).items():
        if isinstance(generator, torch.Generator | np.random.Generator | np.random.RandomState | random.Random):
            raise ConfigError(
                f"sampler= got a {type_name} with a generator of its own (.{name}): where that stands depends on the "
                "epochs that this worker has seen. Leave it out: the global generators are seeded by the Trainer's "
                "seed and the epoch before each pass."
            )
    set_epoch: Callable[[int], None] | None = getattr(sampler, "set_epoch", None)

    def of_epoch(epoch: int) -> Sequence[int]:
        if set_epoch is not None:
            set_epoch(epoch)
        return list(sampler)

    return of_epoch


def hints_folder(job: Path, stream: Stream) -> Path | None:
    """Where workers note for each other how *stream* is opened; a worker on another machine may not have it."""
    folder = job / "streams" / f"{identity(stream, 0):08x}"
    with contextlib.suppress(OSError):
        if job.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            return folder
    return None


def requests(epoch: EpochPlan, first_step: int, nodes: Sequence[int]) -> Iterator[Request]:
    """What a worker that runs *nodes* will ask for, from *first_step* to the end of the epoch."""
    for step in range(first_step, epoch.steps):
        batch = epoch.batch(step)
        for node in nodes:
            if len(batch.shards[node]):
                yield Request(batch.epoch, step, node, 0, batch.shards[node])
