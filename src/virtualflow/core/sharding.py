"""``(seed, epoch, step, virtual node) -> example indices``, as a pure function."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from virtualflow.core.permutation import permuted
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


class EpochPlan(Protocol):
    """What an epoch works on, step by step: a pure function, the same on every worker."""

    @property
    def number(self) -> int: ...
    @property
    def steps(self) -> int: ...
    def batch(self, step: int) -> GlobalBatch:
        """The global batch of *step*."""


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
        return GlobalBatch(self.number, step, cut(examples, self._bounds), self._order_id)


class GivenBatches:
    """One pass over a dataset, in global batches that a batch sampler has chosen."""

    def __init__(self, number: int, batches: Sequence[Indices], sizes: Sequence[int]) -> None:
        self.number = number
        self.steps = len(batches)
        self._batches = batches
        self._bounds = (0, *accumulate(sizes))
        self._order_id = zlib.crc32(b"".join(batch.tobytes() for batch in batches))

    def batch(self, step: int) -> GlobalBatch:
        """The global batch of *step*. A short one fills virtual nodes in order, to their size."""
        return GlobalBatch(self.number, step, cut(self._batches[step], self._bounds), self._order_id)


class Steps:
    """A number of steps over a dataset, pass after pass: each pass has every example once, in an order of its own.

    The order is computed when it is asked for, and never in memory.
    """

    number = 0

    def __init__(self, steps: int, length: int, sizes: Sequence[int], seed: int) -> None:
        self.steps = steps
        self._length = length
        self._bounds = (0, *accumulate(sizes))
        self._seed = seed

    def batch(self, step: int) -> GlobalBatch:
        """The global batch of *step*; its epoch is the pass in which it begins."""
        size = self._bounds[-1]
        positions = np.arange(step * size, (step + 1) * size, dtype=np.int64)
        passes = positions // self._length
        examples = np.empty_like(positions)
        for number in np.unique(passes).tolist():
            here = passes == number
            examples[here] = permuted(positions[here] % self._length, self._length, derive(self._seed, "pass", number))
        return GlobalBatch(int(passes[0]), step, cut(examples, self._bounds), self._length)


class Draws:
    """A number of steps for which a function draws the examples: a step is its number, and nothing else."""

    number = 0

    def __init__(self, steps: int, sizes: Sequence[int]) -> None:
        self.steps = steps
        self._bounds = (0, *accumulate(sizes))

    def batch(self, step: int) -> GlobalBatch:
        """The global batch of *step*."""
        first = step * self._bounds[-1]
        return GlobalBatch(0, step, cut(np.arange(first, first + self._bounds[-1], dtype=np.int64), self._bounds))


class PassAfterPass:
    """A number of steps, over and over through the epochs that *plan* gives."""

    number = 0

    def __init__(self, steps: int, plan: Callable[[int], EpochPlan]) -> None:
        self.steps = steps
        self._plan = plan
        self._epoch = plan(0)
        self._first = 0  # step of that epoch

    def batch(self, step: int) -> GlobalBatch:
        """The global batch of *step*."""
        if step < self._first:
            self._epoch, self._first = self._plan(0), 0
        while step >= self._first + self._epoch.steps:
            self._first += self._epoch.steps
            self._epoch = self._plan(self._epoch.number + 1)
        return replace(self._epoch.batch(step - self._first), step=step)


def cut(examples: Indices, bounds: Sequence[int]) -> tuple[Indices, ...]:
    """*examples* as shards: from each of *bounds* to the next; a short batch leaves the last ones empty."""
    return tuple(examples[start:end] for start, end in pairwise(bounds))


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
            f"sampler({epoch}) gives {_described(order)}, expected one whole number for each example, in the order in "
            "which they are trained on. Batches are cut by the Trainer (batch_size=)."
        )
    if order.min() < 0 or order.max() >= length:
        raise ConfigError(
            f"sampler({epoch}) gives index {order.min() if order.min() < 0 else order.max()}, but the dataset has "
            f"examples 0 to {length - 1}."
        )
    return order.astype(np.int64)


def _described(order: npt.NDArray[np.generic]) -> str:
    if order.ndim != 1:
        return "lists of indices (a batch sampler?)"
    return "a mask of booleans" if order.dtype.kind == "b" else f"values of type {order.dtype}"
