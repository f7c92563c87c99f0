"""``(seed, epoch, step, virtual node) -> example indices``, as a pure function."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from virtualflow.core.seeds import derive
from virtualflow.errors import ConfigError

Indices = npt.NDArray[np.int64]
Sampler = Callable[[int], Sequence[int]]


def node_sizes(batch_size: int, virtual_nodes: int | Sequence[int]) -> tuple[int, ...]:
    """The size of each virtual node: as equal as possible, or as given."""
    if isinstance(virtual_nodes, int):
        return _equal_sizes(batch_size, virtual_nodes)
    sizes = tuple(int(size) for size in virtual_nodes)
    if not sizes or min(sizes) < 1:
        raise ConfigError(f"every virtual node needs at least one example, but virtual_nodes={list(sizes)}")
    if sum(sizes) != batch_size:
        raise ConfigError(
            f"the node sizes add up to {sum(sizes)}, but batch_size={batch_size}. Make them equal: "
            f"batch_size={sum(sizes)} keeps these node sizes."
        )
    return sizes


def _equal_sizes(batch_size: int, virtual_nodes: int) -> tuple[int, ...]:
    if virtual_nodes < 1:
        raise ConfigError(f"a job needs at least one virtual node, but virtual_nodes={virtual_nodes}")
    if batch_size < virtual_nodes:
        raise ConfigError(
            f"batch_size={batch_size} is below virtual_nodes={virtual_nodes}: each virtual node needs at least one "
            f"example. Use at most {max(batch_size, 0)} virtual nodes, or a larger batch."
        )
    size, larger = divmod(batch_size, virtual_nodes)
    return (size + 1,) * larger + (size,) * (virtual_nodes - larger)


@dataclass(frozen=True, slots=True)
class GlobalBatch:
    """What one step works on: for each virtual node the indices of its shard. Holds no data."""

    epoch: int
    step: int  # within the epoch
    shards: tuple[Indices, ...]
    order: int = 0  # stands for the epoch's whole order: workers that see other data have another

    @property
    def examples(self) -> int:
        return sum(len(shard) for shard in self.shards)

    def __iter__(self) -> NoReturn:
        raise ConfigError(_NO_DATA)

    def __getitem__(self, _: object) -> NoReturn:
        raise ConfigError(_NO_DATA)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a global batch has no {name!r}: {_NO_DATA}")


_NO_DATA = (
    "what trainer.batches(dataset) yields holds indices and no data, because each device loads only its own shards. "
    "Hand it to trainer.step(batch); the data arrive in loss_fn(model, batch). batch.examples is their number."
)


class Epoch:
    """One pass over a dataset, cut into global batches and these into shards."""

    def __init__(self, number: int, order: Indices, sizes: Sequence[int], *, drop_last: bool = False) -> None:
        self.number = number
        self._order = order
        self._bounds = (0, *accumulate(sizes))
        self._order_id = zlib.crc32(order.tobytes())
        batch_size = self._bounds[-1]
        self.steps = len(order) // batch_size if drop_last else -(-len(order) // batch_size)

    def batch(self, step: int) -> GlobalBatch:
        """The global batch of *step*. A short last one fills virtual nodes in order, to their size."""
        if not 0 <= step < self.steps:
            raise IndexError(f"epoch {self.number} has steps 0 to {self.steps - 1}, not {step}")
        batch_size = self._bounds[-1]
        examples = self._order[step * batch_size : (step + 1) * batch_size]
        shards = (examples[start:end] for start, end in zip(self._bounds, self._bounds[1:], strict=False))
        return GlobalBatch(self.number, step, tuple(shards), self._order_id)


def shuffled(seed: int, epoch: int, length: int) -> Indices:
    """Each index below *length* once, in an order that depends on *seed* and *epoch* alone."""
    generator = np.random.Generator(np.random.Philox(key=derive(seed, "order", epoch)))
    return generator.permutation(length)


def sampled(sampler: Sampler, epoch: int, length: int) -> Indices:
    """The indices that the user's *sampler* gives for *epoch*."""
    try:
        order = np.asarray([int(index) if hasattr(index, "item") else index for index in sampler(epoch)])
    except ValueError:  # lists of several lengths
        order = np.empty((0, 0))
    if order.shape == (0,):
        raise ConfigError(f"sampler({epoch}) gives no index at all, so epoch {epoch} has nothing to train on.")
    if order.ndim != 1 or order.dtype.kind not in "iu":
        raise ConfigError(
            f"sampler({epoch}) gives {_kind_of(order)}, expected one whole number for each example, in the order in "
            "which they are trained on. Batches are cut by the Trainer (batch_size=)."
        )
    if order.min() < 0 or order.max() >= length:
        raise ConfigError(
            f"sampler({epoch}) gives index {order.min() if order.min() < 0 else order.max()}, but the dataset has "
            f"examples 0 to {length - 1}."
        )
    return order.astype(np.int64)


def _kind_of(order: npt.NDArray[np.generic]) -> str:
    if order.ndim != 1:
        return "lists of indices (a batch sampler?)"
    return "a mask of booleans" if order.dtype.kind == "b" else f"values of type {order.dtype}"
