"""From indices to shards: each example with its own seed, each shard with its own memory, the next one on its way.

Datasets run in the training thread between waves, or in loader processes; never in another thread, because all
generators are shared between threads. Which of the two is a matter of time alone.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, Subset, TensorDataset, default_collate

from virtualflow.core.seeds import derive
from virtualflow.errors import ConfigError
from virtualflow.streams.reader import StreamReader
from virtualflow.streams.stream import Stream
from virtualflow.streams.zipping import ZippedReader
from virtualflow.train.ahead import Ahead, Announced
from virtualflow.train.ahead import Request as Request
from virtualflow.train.footprint import Footprint
from virtualflow.train.reach import NotPlainError
from virtualflow.train.seeding import reseed
from virtualflow.train.sources import Collate as Collate
from virtualflow.train.sources import DrawnBatches
from virtualflow.train.upload import Upload

logger = logging.getLogger("virtualflow")

Batch = Any


class Dataset(Protocol):
    """A map-style dataset."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class Shard:
    """A collated shard, and a digest of the indices with which ``dataset[i]`` was really called."""

    batch: Batch
    examples: int
    ids: int
    is_drawn: bool = False  # by a function, which may have drawn another number of examples


_fetching: Request | None = None


def fetching() -> Request | None:
    """The request that this process is loading right now: a dataset may ask, to record what it was called for."""
    return _fetching


_looking = False


def is_looking() -> bool:
    """Whether an example is loaded only to be compared, not to be trained on."""
    return _looking


class ShardDataset:
    """Loads a whole shard for each request; runs in the training thread or in a loader process."""

    def __init__(self, dataset: Dataset, collate_fn: Collate | None, seed: int) -> None:
        self.dataset = dataset
        self._collate_fn = collate_fn
        self._seed = seed

    @property
    def parts(self) -> dict[str, Any]:
        """All that decides what is loaded."""
        if isinstance(self.dataset, DrawnBatches):
            return {"batch_fn": self.dataset.batch_fn}
        if isinstance(self.dataset, StreamReader):  # which has cursors of its own in every process
            stream = self.dataset.stream
            return {"open_shard": stream.open_shard, "map": stream.function, "collate_fn": self._collate_fn}
        return {"the dataset": self.dataset, "collate_fn": self._collate_fn}

    @property
    def reads_on(self) -> bool:
        """Whether a virtual node's next shard is loaded faster where the one before was."""
        return isinstance(self.dataset, StreamReader)

    def __call__(self, request: Request) -> Shard:
        global _fetching
        _fetching = request
        indices = request.indices.tolist()
        threads = torch.get_num_threads()
        try:
            if threads > 1:
                torch.set_num_threads(1)  # as in a loader process, for the same bits
            is_drawn = isinstance(self.dataset, DrawnBatches)
            ids = self.dataset.ids(indices) if isinstance(self.dataset, ZippedReader) else indices
            return Shard(self._loaded(request, indices), len(indices), digest_of_ids(ids), is_drawn)
        finally:
            if threads > 1:
                torch.set_num_threads(threads)
            _fetching = None

    def _loaded(self, request: Request, indices: list[int]) -> Batch:
        if isinstance(self.dataset, DrawnBatches):
            reseed(derive(self._seed, "draw", request.step, request.virtual_node))
            return self.dataset.batch_fn(len(indices))
        if self._collate_fn is None and (rows := gathered(self.dataset, indices)) is not None:
            return rows
        examples = [self.example(request.epoch, index) for index in indices]
        reseed(derive(self._seed, "collate", request.epoch, request.step, request.virtual_node))
        return (self._collate_fn or default_collate)(examples)

    def example(self, epoch: int, index: int) -> Any:
        """One example, seeded by epoch and example: augmentation gives the same on any device and loader process."""
        if not isinstance(self.dataset, StreamReader):  # which seeds by itself what may draw
            reseed(derive(self._seed, "example", epoch, index))
        return self.dataset[index]


def gathered(dataset: Dataset, indices: list[int]) -> list[Tensor] | None:
    """What collating the examples would give, at once, where they are rows of tensors in memory and no code runs."""
    if type(dataset) is Subset:
        return gathered(dataset.dataset, [dataset.indices[index] for index in indices])  # type: ignore[arg-type]
    if type(dataset) is not TensorDataset or not all(map(_is_plain, dataset.tensors)):
        return None
    rows = torch.tensor(indices)
    return [torch.index_select(tensor, 0, rows) for tensor in dataset.tensors]


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) is Tensor and tensor.device.type == "cpu" and not (tensor.is_complex() or tensor.requires_grad)


def digest_of_ids(indices: Sequence[int]) -> int:
    """63 bits that stand for *indices* in their order."""
    text = b",".join(b"%d" % index for index in indices)
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


START_SECONDS = 0.1  # to fork a process for a pass and to end it, beside a gigabyte of data
CROWDED = 0.25  # of its computing time that a thread queues for a core, where other jobs have them all
PATIENCE_SECONDS = 10.0  # for a loader process that nobody asked for, beside 20 times what a shard took so far


class AheadBenefit:
    """Adds up what loading ahead would have saved so far in this pass.

    Decides about time only, never about bits. A loader process begins when as much was lost as its start costs.
    """

    def __init__(self, *, spare_core: bool) -> None:
        self._spare_core = spare_core
        self._ended: float | None = None
        self._computed = self._queued = 0.0
        self.saved = 0.0
        self.longest = 0.0

    def loaded(self, began: float, ended: float, cpu_seconds: float, queued_seconds: float) -> None:
        """A shard was loaded in the training thread, which computed so long and queued so long for its core."""
        seconds = ended - began
        self.longest = max(self.longest, seconds)
        self._computed += cpu_seconds
        self._queued += queued_seconds
        # Without a core to spare only waiting (for a disk, a network) can be hidden behind the computation.
        spare = self._spare_core and self._queued <= CROWDED * self._computed
        hidden = seconds if spare else max(0.0, seconds - cpu_seconds - queued_seconds)
        if self._ended is not None:
            self.saved += min(hidden, began - self._ended)
        self._ended = ended

    @property
    def proven(self) -> bool:
        return self.saved > START_SECONDS


class Feed:
    """Hands out shards, and fetches those that were announced ahead of their use where that changes nothing.

    *loader_workers* processes do that; None leaves it to the feed. It then loads in the training thread and, if that
    takes long, in one process beside it, as long as the dataset is plain data that nobody changes.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        collate_fn: Collate | None,
        seed: int,
        loader_workers: int | None,
        device: torch.device,
        spare_core: bool = False,
    ) -> None:
        self._shards = ShardDataset(dataset, collate_fn, seed)
        self._loader_workers = loader_workers
        self._upload = Upload(device) if device.type != "cpu" else None
        self._announced = Announced()
        self._ahead: Ahead | None = None
        self._footprint: Footprint | None = None
        self._automatic = loader_workers is None
        self._spare_core = spare_core
        self._benefit: AheadBenefit | None = None

    @property
    def fetches_ahead(self) -> bool:
        """Whether shards that were announced are loaded while others are in use."""
        return bool(self._loader_workers)

    def example(self, epoch: int, index: int) -> Any:
        """One example, loaded here and now, to look at it."""
        global _looking
        _looking = True
        try:
            return self._shards.example(epoch, index)
        finally:
            _looking = False

    def announce(self, requests: Iterable[Request]) -> None:
        """Say which shards will be asked for, in order; what was fetched for an earlier announcement is dropped."""
        self._announced = Announced(requests)
        if self._automatic and self._benefit is None:
            self._benefit = AheadBenefit(spare_core=self._spare_core)
        if self._ahead is not None:
            self._ahead.announce(self._announced)
        elif self._loader_workers:
            self._footprint = Footprint(self._shards.parts, strict=False)
            self._begin_ahead(self._loader_workers)

    def take(self, request: Request) -> Shard:
        """The shard for *request*: from a loader process if it was announced, else loaded here and now."""
        first = self._announced.taking(request)
        if self._ahead is not None and first:
            self._look_for_changes(everything=False)
        shard = self._fetched(request) if self._ahead is not None else None
        if shard is None:
            shard = self._load(request)
        if self._ahead is not None and self._announced.exhausted and not self._ahead.under_way:
            self._look_for_changes(everything=True)
            self.close()
        return shard if self._upload is None else replace(shard, batch=self._upload(shard.batch))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the loader processes: what is asked for without another announcement is loaded in the training thread."""
        if self._ahead is not None:
            self._ahead.end()
        self._ahead = self._footprint = self._benefit = None
        self._automatic = False

    def _begin_ahead(self, processes: int) -> None:
        self._ahead = Ahead(self._shards, processes, self._announced, by_node=self._shards.reads_on)

    def _fetched(self, request: Request) -> Shard | None:
        assert self._ahead is not None
        patience = None if self._benefit is None else PATIENCE_SECONDS + 20 * self._benefit.longest
        shard: Shard | None = self._ahead.take(request, patience)
        if not self._ahead.works:
            self.close()
        return shard

    def _load(self, request: Request) -> Shard:
        began, cpu, queued = time.perf_counter(), time.thread_time(), _queued_seconds()
        shard = self._shards(request)
        if self._benefit is not None:
            ended = time.perf_counter()
            self._benefit.loaded(began, ended, time.thread_time() - cpu, _queued_seconds() - queued)
            self._consider(self._benefit)
        elif self._footprint is not None:
            self._footprint.renew()  # what the dataset keeps of its own calls is no change from outside
        return shard

    def _consider(self, benefit: AheadBenefit) -> None:
        """Begin to load ahead if it pays and is safe."""
        if not benefit.proven:
            return
        if self._footprint is None:
            try:
                self._footprint = Footprint(self._shards.parts, strict=True)
            except NotPlainError as reason:
                self._stay(f"{reason}")
        elif (name := self._footprint.change(everything=self._ahead is None)) is not None:
            self._stay(f"{name} changes while it is used")
        elif self._ahead is None:  # one shard was loaded since, and nothing has changed
            self._begin_ahead(1)

    def _stay(self, reason: str) -> None:
        logger.info("the dataset is loaded in the training thread, although that takes long: %s", reason)
        self.close()

    def _look_for_changes(self, *, everything: bool) -> None:
        assert self._footprint is not None
        name = self._footprint.change(everything=everything)
        if name is None:
            return
        if self._benefit is not None and not everything:
            self._stay(f"{name} is changed while the epoch runs")
            return
        raise ConfigError(
            f"{name} was changed while an epoch runs. Loader processes have the dataset as it was when the epoch began "
            "and work ahead, so which examples would see the change depends on the number of devices. Change it "
            "between epochs, before trainer.batches(dataset), or load in the training thread: loader_workers=0."
        )


def _queued_seconds() -> float:
    """How long this thread could have run so far and had no core (Linux; elsewhere nothing is known)."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            return int(file.read().split()[1]) * 1e-9
    except (OSError, IndexError):
        return 0.0


def length_of(dataset: Dataset, purpose: str) -> int:
    """The length of *dataset*, refused where there is nothing to do or no way to index it."""
    if (reason := _not_a_dataset(dataset)) is not None:
        raise ConfigError(f"{purpose} needs a map-style dataset, with __len__ and __getitem__, but got {reason}")
    length = len(dataset)
    if length == 0:
        raise ConfigError(f"{purpose} got a dataset of length 0. Check the path or the filter that made it.")
    return length


def _not_a_dataset(dataset: Any) -> str | None:
    type_name = type(dataset).__name__
    if isinstance(dataset, Stream):
        return "a stream, whose examples have no index. Put a part of it into a list: list(stream)."
    if type_name == "_FabricDataLoader":
        return "what fabric.setup_dataloaders returns. Leave that call out, and pass the DataLoader itself."
    if hasattr(dataset, "num_shards") and hasattr(dataset, "state_dict"):
        return f"{type_name}, a stream of Hugging Face's. Use vf.hf_stream(dataset)."
    if isinstance(dataset, Mapping):
        return f"a {type_name} of columns. Make it a list of examples, or TensorDataset(*columns)."
    if isinstance(dataset, tuple) and dataset and all(isinstance(part, Tensor) for part in dataset):
        return "a tuple of tensors, which would be a dataset with an example for each. Pass TensorDataset(*tensors)."
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        return (
            f"{type_name}{', an IterableDataset' if isinstance(dataset, IterableDataset) else ''}: examples must have "
            "an index so that any device can load any of them. Use vf.Stream(open_shard, shards=...), or put the data "
            "into a list first: list(dataset)."
        )
    return None
