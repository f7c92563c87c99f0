"""Iterable datasets of Hugging Face's ``datasets`` as streams. Its map-style ones are datasets as they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from virtualflow.errors import ConfigError
from virtualflow.streams.stream import Stream


def hf_stream(
    dataset: Any, *, shards: int | None = None, examples: int | Sequence[int] | None = None, block: int = 0
) -> Stream:
    """The stream that an ``IterableDataset`` of Hugging Face is, by its own shards and its own state.

    *shards* is at most the dataset's own number, which it is by default. A ``shuffle`` of the dataset's own is refused:
    its buffer can't be opened in the middle. *block* shuffles instead.
    """
    if not all(hasattr(dataset, name) for name in ("num_shards", "shard", "state_dict")):
        raise ConfigError(
            f"vf.hf_stream got a {type(dataset).__name__}, expected an IterableDataset of Hugging Face's datasets. A "
            "map-style Dataset needs no stream: pass it to trainer.batches as it is."
        )
    shards = dataset.num_shards if shards is None else shards
    if shards > dataset.num_shards:
        raise ConfigError(
            f"the dataset has {dataset.num_shards} shards of its own (num_shards), which can't be cut into {shards}. "
            "Use at most that number; dataset.to_iterable_dataset(num_shards=...) and more files make more."
        )
    if _is_shuffled(dataset):
        raise ConfigError(
            "vf.hf_stream got a dataset with a shuffle of its own. Its buffer is not part of its state, so a "
            "worker that continues from the middle would lose examples. Leave shuffle() out: "
            "vf.hf_stream(dataset, block=n) shuffles."
        )
    return Stream(HubShards(dataset, shards), shards=shards, examples=examples, block=block)


@dataclass(frozen=True, slots=True)
class HubShards:
    """Opens each shard of an iterable dataset."""

    dataset: Any
    shards: int

    def __call__(self, shard: int) -> Iterable[Any]:
        part: Iterable[Any] = self.dataset.shard(num_shards=self.shards, index=shard)
        return part


def _is_shuffled(dataset: Any) -> bool:
    """Whether a shuffle buffer is anywhere in what the dataset is made of."""
    part = getattr(dataset, "_ex_iterable", None)
    while part is not None:
        if "Buffer" in type(part).__name__:
            return True
        part = getattr(part, "ex_iterable", None)
    return False
