"""Several datasets in one step: each example of the first brings some of the others along."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from virtualflow.core.permutation import permuted
from virtualflow.core.seeds import derive
from virtualflow.core.sharding import EpochPlan, GlobalBatch
from virtualflow.errors import ConfigError
from virtualflow.streams.stream import Stream


@dataclass(frozen=True, slots=True, eq=False)
class Zipped:
    """Datasets whose examples come together. An epoch is one pass over the first; see ``zipped``."""

    first: Any
    others: tuple[Any, ...]
    each: tuple[int, ...]


def zipped(first: Any, *others: Any, each: int | Sequence[int] = 1) -> Zipped:
    """Train on several datasets at once: an example is ``(one of the first, one of the second, ...)``.

    *each* says how many of the other datasets come with an example of the first, in one number or one for each; more
    than one are a list. An epoch is one pass over *first*. The others are passed over again and again, each pass in an
    order of its own and with each example once, whether they are shorter or longer.
    """
    ratios = (each,) * len(others) if isinstance(each, int) else tuple(each)
    if not others or len(ratios) != len(others) or min(ratios) < 1:
        raise ConfigError(
            f"vf.zipped got {len(others)} datasets beside the first, and each={each}. It takes one or more, and of "
            "each how many come with an example of the first: vf.zipped(labelled, unlabelled, each=7)."
        )
    for dataset in (first, *others):
        if isinstance(dataset, Stream) or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise ConfigError(
                f"vf.zipped got a {type(dataset).__name__}: which examples come together follows from their indices. "
                "Use datasets with __len__ and __getitem__; a part of a stream can be list(stream)."
            )
        if len(dataset) == 0:
            raise ConfigError("vf.zipped got a dataset of length 0. Check the path or the filter that made it.")
    return Zipped(first, others, ratios)


class ZippedReader:
    """``reader[index]`` is a pure function of the index, which counts through the epochs over the first dataset."""

    def __init__(self, data: Zipped, seed: int) -> None:
        self._data = data
        self._seed = seed

    def __len__(self) -> int:
        return len(self._data.first)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        example = [self._data.first[index % len(self)]]
        for number, (dataset, ratio) in enumerate(zip(self._data.others, self._data.each, strict=True)):
            brought = [dataset[place] for place in self._places(number, index)]
            example.append(brought if ratio > 1 else brought[0])
        return tuple(example)

    def ids(self, indices: Sequence[int]) -> list[int]:
        """What stands for the examples at *indices* in a certificate: the place of each, and of all that it brings."""
        numbers = range(len(self._data.others))
        return [id_ for index in indices for id_ in (index, *(p for n in numbers for p in self._places(n, index)))]

    def _places(self, number: int, index: int) -> list[int]:
        """Which examples of the other dataset of that *number* come along: its passes are laid end to end."""
        length, ratio = len(self._data.others[number]), self._data.each[number]
        turns, within = np.divmod(np.arange(index * ratio, (index + 1) * ratio), length)
        return [
            place
            for turn in np.unique(turns).tolist()
            for place in permuted(within[turns == turn], length, derive(self._seed, "zipped", number, turn)).tolist()
        ]


class ZippedEpoch:
    """An epoch over the first dataset, as indices that count through the epochs."""

    def __init__(self, epoch: EpochPlan, data: Zipped) -> None:
        self.number = epoch.number
        self.steps = epoch.steps
        self._epoch = epoch
        self._before = epoch.number * len(data.first)
        lengths = [len(dataset) for dataset in data.others]
        self._order_id = zlib.crc32(repr((lengths, data.each)).encode())

    def batch(self, step: int) -> GlobalBatch:
        """The global batch of *step*."""
        batch = self._epoch.batch(step)
        shards = tuple(shard + self._before for shard in batch.shards)
        return replace(batch, shards=shards, order=batch.order ^ self._order_id)
