"""What people train on, as a Trainer passes over it: datasets, DataLoaders, and functions that draw a batch."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, SequentialSampler, default_collate

from virtualflow.core.seeds import derive
from virtualflow.core.sharding import EpochPlan, GivenBatches, Indices
from virtualflow.errors import ConfigError
from virtualflow.train.seeding import reseed

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True, slots=True)
class TrainingData:
    """A dataset that a feed loads from, and what each epoch over it works on."""

    dataset: Any
    plan: Callable[[int], EpochPlan]
    length: int = 0  # 0 for one that has no examples of its own to look at
    collate_fn: Collate | None = None
    loader_workers: int | None = None  # None for as many as the Trainer has


class DrawnBatches:
    """Stands for a dataset where a function of the shard's size makes the whole shard."""

    def __init__(self, batch_fn: Callable[[int], Any]) -> None:
        self.batch_fn = batch_fn


def from_loader(loader: DataLoader[Any], sizes: tuple[int, ...], seed: int) -> TrainingData:
    """The source that *loader* describes. Raises ConfigError for what can't be the same on every worker."""
    _check_loader(loader, sum(sizes))
    plan = _LoaderPlan(loader, sizes, seed)
    length = len(loader.dataset)  # type: ignore[arg-type]
    return TrainingData(loader.dataset, plan, length, own_collate(loader), loader.num_workers or None)


def own_collate(loader: DataLoader[Any]) -> Collate | None:
    """The loader's function, or None for torch's own: what it gives is then gathered where that is faster."""
    return None if loader.collate_fn is default_collate else loader.collate_fn


def in_order(loader: DataLoader[Any], call: str) -> tuple[Any, Collate | None]:
    """The dataset and collate function of a loader for *call*, which goes through the dataset in its own order."""
    if isinstance(loader.dataset, IterableDataset) or type(loader.sampler) is not SequentialSampler:
        raise ConfigError(
            f"{call} got a DataLoader that does not go through a map-style dataset in its own order "
            f"({type(loader.sampler).__name__}). Give the loader shuffle=False, or pass the dataset itself."
        )
    return loader.dataset, own_collate(loader)


class _LoaderPlan:
    """The epochs of a DataLoader: which batches there are is drawn anew from the seed and the epoch alone."""

    def __init__(self, loader: DataLoader[Any], sizes: tuple[int, ...], seed: int) -> None:
        self._loader = loader
        self._sizes = sizes
        self._seed = seed
        self._drawn_twice = False

    def __call__(self, number: int) -> EpochPlan:
        batches = self._drawn(number)
        if not self._drawn_twice and not _are_equal(batches, self._drawn(number)):
            raise ConfigError(
                f"{type(_innermost(self._loader)).__name__} gives other batches when it is asked again for the same "
                "epoch, so a worker that joins could not find the job's. Let it depend on set_epoch(epoch), or on the "
                "generators of torch, numpy and random, which are seeded before each epoch; and on nothing that it "
                "keeps."
            )
        self._drawn_twice = True
        reseed(derive(self._seed, "after loader", number))
        return GivenBatches(number, batches, self._sizes)

    def _drawn(self, number: int) -> list[Indices]:
        loader, seed = self._loader, derive(self._seed, "loader", number)
        reseed(seed)
        for part in _parts(loader):
            if isinstance(generator := getattr(part, "generator", None), torch.Generator):
                generator.manual_seed(seed)
            if callable(set_epoch := getattr(part, "set_epoch", None)):
                set_epoch(number)
        batches = [_indices(batch) for batch in loader.batch_sampler or ()]
        _check_batches(batches, sum(self._sizes), len(loader.dataset))  # type: ignore[arg-type]
        return batches


def _indices(batch: Any) -> Indices:
    try:
        indices = np.asarray([int(index) for index in batch], dtype=np.int64)
    except (TypeError, ValueError):
        raise ConfigError(
            f"the DataLoader's batch sampler gives a batch of {type(batch).__name__}, expected indices of examples"
        ) from None
    return indices


def _check_batches(batches: list[Indices], batch_size: int, length: int) -> None:
    if not batches:
        raise ConfigError("the DataLoader gives no batch at all. Check its dataset, its sampler and drop_last.")
    if (longest := max(map(len, batches))) > batch_size:
        raise ConfigError(
            f"the DataLoader gives a batch of {longest} examples, but the Trainer has batch_size={batch_size}: that is "
            f"the most that its virtual nodes take together. Make it batch_size={longest}."
        )
    if any(len(batch) == 0 for batch in batches):
        raise ConfigError("the DataLoader's batch sampler gives a batch without examples. Leave such batches out.")
    together = np.concatenate(batches)
    if together.min() < 0 or together.max() >= length:
        odd = together.min() if together.min() < 0 else together.max()
        raise ConfigError(f"the DataLoader's sampler gives index {odd}, but its dataset has {length} examples.")


def _are_equal(one: list[Indices], other: list[Indices]) -> bool:
    return len(one) == len(other) and all(map(np.array_equal, one, other))


def _parts(loader: DataLoader[Any]) -> list[Any]:
    """The loader and the samplers in it, each once."""
    inner = getattr(loader.batch_sampler, "sampler", None)
    parts = [loader, loader.batch_sampler, loader.sampler, inner, getattr(inner, "sampler", None)]
    return list({id(part): part for part in parts if part is not None}.values())


def _innermost(loader: DataLoader[Any]) -> Any:
    return getattr(loader.batch_sampler, "sampler", None) or loader.batch_sampler


def _check_loader(loader: DataLoader[Any], batch_size: int) -> None:
    if isinstance(loader.dataset, IterableDataset):
        raise ConfigError(
            "trainer.batches got a DataLoader over an IterableDataset: examples must have an index so that any device "
            "can load any of them. Use vf.Stream(open_shard, shards=...), or put the data into a list."
        )
    if loader.batch_sampler is None:
        raise ConfigError(
            "trainer.batches got a DataLoader with batch_size=None: its items are whole batches, which can't be split "
            "over virtual nodes. Give it a batch_size, or use trainer.steps(n, batch_fn)."
        )
    if any(isinstance(part, DistributedSampler) for part in _parts(loader)):
        raise ConfigError(
            "trainer.batches got a DataLoader with a DistributedSampler, which picks out one worker's part of the "
            "data. Leave it out (shuffle=True instead): the Trainer gives each device its own shards."
        )
    if loader.worker_init_fn is not None:
        raise ConfigError(
            "trainer.batches got a DataLoader with a worker_init_fn. Leave it out: every example is loaded under its "
            "own seed, so loader processes need none; and what else it sets up would be missing where an example is "
            "loaded in the training thread."
        )
    if loader.batch_size is not None and loader.batch_size != batch_size:
        raise ConfigError(
            f"the DataLoader has batch_size={loader.batch_size} and the Trainer batch_size={batch_size}. The loader's "
            "batch is the global batch, which the Trainer splits over its virtual nodes: make them equal."
        )
    for part in _parts(loader):
        for name, generator in vars(part).items():
            if isinstance(generator, np.random.Generator | np.random.RandomState | random.Random):
                raise ConfigError(
                    f"the DataLoader's {type(part).__name__} has a generator of its own (.{name}): where that stands "
                    "depends on the epochs that this worker has seen. Use a torch.Generator, or the global generators: "
                    "they are seeded before each epoch."
                )
