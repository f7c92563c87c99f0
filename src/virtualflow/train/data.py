"""From indices to shards: each example with its own seed, each shard with its own memory, the next one on its way.

Datasets run in the training thread between waves, or in loader processes; never in another thread, because all
generators are shared between threads.
"""

from __future__ import annotations

import hashlib
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from virtualflow.core.processes import die_with_parent
from virtualflow.core.seeds import derive
from virtualflow.core.sharding import Indices
from virtualflow.errors import ConfigError
from virtualflow.train.seeding import pin_threads, reseed

Batch = Any
Collate = Callable[[list[Any]], Batch]


class Dataset(Protocol):
    """A map-style dataset."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class Request:
    """The shard of one virtual node in one attempt at a step."""

    epoch: int
    step: int
    virtual_node: int
    attempt: int
    indices: Indices

    @property
    def key(self) -> tuple[int, int, int, int]:
        return (self.epoch, self.step, self.virtual_node, self.attempt)


@dataclass(frozen=True, slots=True)
class Shard:
    """A collated shard, and a digest of the indices with which ``dataset[i]`` was really called."""

    batch: Batch
    examples: int
    ids: int


_fetching: Request | None = None


def fetching() -> Request | None:
    """The request that this process is loading right now: a dataset may ask, to record what it was called for."""
    return _fetching


class ShardDataset:
    """Loads a whole shard for each request; runs wherever the DataLoader puts it."""

    def __init__(self, dataset: Dataset, collate_fn: Collate | None, seed: int) -> None:
        self._dataset = dataset
        self._collate = collate_fn or default_collate
        self._seed = seed

    def __getitem__(self, request: Request) -> Shard:
        global _fetching
        _fetching = request
        called = []
        examples = []
        try:
            for index in request.indices.tolist():
                # Seeded by epoch and example: augmentation gives the same on any device and any loader process.
                reseed(derive(self._seed, "example", request.epoch, index))
                called.append(index)
                examples.append(self._dataset[index])
            reseed(derive(self._seed, "collate", request.epoch, request.step, request.virtual_node))
            return Shard(self._collate(examples), len(examples), digest_of_ids(called))
        finally:
            _fetching = None


def digest_of_ids(indices: Sequence[int]) -> int:
    """63 bits that stand for *indices* in their order."""
    text = b",".join(b"%d" % index for index in indices)
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


class Announced:
    """The requests that loader processes work on, ahead of their use: the sampler of a Feed's DataLoader."""

    def __init__(self) -> None:
        self.requests: Iterable[Request] = ()
        self._under_way: deque[tuple[int, int, int, int]] = deque()

    def __iter__(self) -> Iterator[Request]:
        self._under_way.clear()
        for request in self.requests:
            self._under_way.append(request.key)
            yield request

    def place(self, request: Request) -> int | None:
        """How many shards arrive before that of *request*, or None if it was not announced."""
        return self._under_way.index(request.key) if request.key in self._under_way else None

    def arrived(self) -> None:
        self._under_way.popleft()


class Feed:
    """Hands out shards in the order announced, fetching ahead of the one in use in *loader_workers* processes."""

    def __init__(
        self,
        dataset: Dataset,
        *,
        collate_fn: Collate | None,
        seed: int,
        loader_workers: int,
        device: torch.device,
    ) -> None:
        self._shards = ShardDataset(dataset, collate_fn, seed)
        self._device = device
        self._announced = Announced()
        self._arriving: Iterator[Shard] | None = None
        self._loader: DataLoader[Shard] | None = None
        if loader_workers > 0:
            self._loader = DataLoader(
                self._shards,  # type: ignore[arg-type]
                sampler=self._announced,
                batch_size=None,
                collate_fn=_as_is,  # type: ignore[arg-type]
                num_workers=loader_workers,
                multiprocessing_context="fork",
                persistent_workers=True,
                pin_memory=device.type == "cuda",
                worker_init_fn=_start_loader_process,
                generator=torch.Generator(),
            )

    @property
    def fetches_ahead(self) -> bool:
        """Whether shards that were announced are loaded while others are in use."""
        return self._loader is not None

    def announce(self, requests: Iterable[Request]) -> None:
        """Say which shards will be asked for, in order; what was fetched for an earlier announcement is dropped."""
        if self._loader is not None:
            self._announced.requests = requests
            self._arriving = iter(self._loader)

    def take(self, request: Request) -> Shard:
        """The shard for *request*: from the loader processes if it was announced, else loaded here and now."""
        place = self._announced.place(request)
        if self._arriving is None or place is None:
            shard = self._shards[request]
        else:
            for _ in range(place + 1):  # the script may have skipped a batch
                shard = next(self._arriving)
                self._announced.arrived()
        if self._device.type == "cpu":
            return shard
        return Shard(moved(shard.batch, self._device), shard.examples, shard.ids)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the loader processes."""
        self._arriving = self._loader = None


def _as_is(shard: Shard) -> Shard:
    return shard


def _start_loader_process(_: int) -> None:
    die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a worker's own handler is not for its helpers
    pin_threads(1)


def moved(value: Any, device: torch.device) -> Any:
    """*value* with every tensor in it on *device*, through any nesting of dicts, lists and tuples."""
    if isinstance(value, Tensor) or hasattr(value, "to"):
        return value.to(device, non_blocking=True) if isinstance(value, Tensor) else value.to(device)
    if isinstance(value, Mapping):
        return {key: moved(item, device) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(moved(item, device) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(moved(item, device) for item in value)
    return value


def length_of(dataset: Dataset, purpose: str) -> int:
    """The length of *dataset*, refused where there is nothing to do or no way to index it."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise ConfigError(
            f"{purpose} needs a map-style dataset, with __len__ and __getitem__, but got {type(dataset).__name__}: "
            "examples must have an index so that any device can load any of them. Put iterable data into a list first."
        )
    length = len(dataset)
    if length == 0:
        raise ConfigError(f"{purpose} got a dataset of length 0. Check the path or the filter that made it.")
    return length
