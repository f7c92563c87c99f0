"""How a Trainer turns datasets into epochs and shards: everything about data that it was told when it was made."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import BatchSampler, DistributedSampler
from torch.utils.data import Sampler as SamplerObject

from virtualflow.core.seeds import derive
from virtualflow.core.sharding import Epoch, Indices, Sampler, sampled, shuffled
from virtualflow.errors import ConfigError
from virtualflow.train import solo
from virtualflow.train.data import Collate, Dataset, Feed, Request, length_of
from virtualflow.train.seeding import reseed


@dataclass(slots=True)
class Loading:
    """Makes epochs of a dataset, and feeds that load its shards."""

    sizes: tuple[int, ...]
    seed: int
    device: torch.device
    collate_fn: Collate | None = None
    sampler: Sampler | SamplerObject[Any] | None = None
    drop_last: bool = False
    loader_workers: int | None = None
    _kept: Feed | None = field(default=None, init=False)
    _sampler: Sampler | None = field(default=None, init=False)
    _sampled_twice: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._sampler = as_function(self.sampler) if self.sampler is not None else None

    def epoch(self, dataset: Dataset, number: int) -> Epoch:
        """Epoch *number* over *dataset*."""
        length = length_of(dataset, "batches")
        order = shuffled(self.seed, number, length) if self._sampler is None else self._sampled(number, length)
        epoch = Epoch(number, order, self.sizes, drop_last=self.drop_last)
        if epoch.steps == 0:
            raise ConfigError(
                f"an epoch of {len(order)} examples has no step of batch_size={sum(self.sizes)} with drop_last=True. "
                "Use drop_last=False or a smaller batch."
            )
        return epoch

    def feed(self, dataset: Dataset) -> Feed:
        """A feed for one pass."""
        devices = len(solo.current().devices) * torch.get_num_threads()
        return Feed(
            dataset,
            collate_fn=self.collate_fn,
            seed=self.seed,
            loader_workers=self.loader_workers,
            device=self.device,
            spare_core=len(os.sched_getaffinity(0)) > devices if hasattr(os, "sched_getaffinity") else False,
        )

    def kept_feed(self, dataset: Dataset) -> Feed:
        """The training feed of the epoch that begins, with the dataset as it is now: that of the last one ends."""
        if self._kept is not None:
            self._kept.close()
        self._kept = self.feed(dataset)
        return self._kept

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
    kind = type(sampler).__name__
    if isinstance(sampler, BatchSampler):
        raise ConfigError(
            f"sampler= got a {kind}: batches are cut by the Trainer (batch_size=). Pass the inner sampler."
        )
    if isinstance(sampler, DistributedSampler):
        raise ConfigError(
            f"sampler= got a {kind}, which picks out one worker's part of the data. Leave it out: the Trainer "
            "shuffles and gives each device its own shards."
        )
    for name, generator in vars(sampler).items():
        if isinstance(generator, torch.Generator | np.random.Generator | np.random.RandomState | random.Random):
            raise ConfigError(
                f"sampler= got a {kind} with a generator of its own (.{name}): where that stands depends on the epochs "
                "that this worker has seen. Leave it out: the global generators are seeded by the Trainer's seed and "
                "the epoch before each pass."
            )
    set_epoch: Callable[[int], None] | None = getattr(sampler, "set_epoch", None)

    def of_epoch(epoch: int) -> Sequence[int]:
        if set_epoch is not None:
            set_epoch(epoch)
        return list(sampler)

    return of_epoch


def requests(epoch: Epoch, first_step: int, nodes: Sequence[int]) -> Iterator[Request]:
    """What a worker that runs *nodes* will ask for, from *first_step* to the end of the epoch."""
    for step in range(first_step, epoch.steps):
        shards = epoch.batch(step).shards
        for node in nodes:
            if len(shards[node]):
                yield Request(epoch.number, step, node, 0, shards[node])
