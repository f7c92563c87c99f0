"""How a Trainer turns datasets into epochs and shards: everything about data that it was told when it was made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from virtualflow.core.sharding import Epoch, Sampler, sampled, shuffled
from virtualflow.errors import ConfigError
from virtualflow.train.data import Collate, Dataset, Feed, Request, length_of


@dataclass(slots=True)
class Loading:
    """Makes epochs of a dataset, and feeds that load its shards."""

    sizes: tuple[int, ...]
    seed: int
    device: torch.device
    collate_fn: Collate | None = None
    sampler: Sampler | None = None
    drop_last: bool = False
    loader_workers: int = 0
    _kept: tuple[Dataset, Feed] | None = field(default=None, init=False)

    def epoch(self, dataset: Dataset, number: int) -> Epoch:
        """Epoch *number* over *dataset*."""
        length = length_of(dataset, "batches")
        order = sampled(self.sampler, number, length) if self.sampler else shuffled(self.seed, number, length)
        epoch = Epoch(number, order, self.sizes, drop_last=self.drop_last)
        if epoch.steps == 0:
            raise ConfigError(
                f"an epoch of {len(order)} examples has no step of batch_size={sum(self.sizes)} with drop_last=True. "
                "Use drop_last=False or a smaller batch."
            )
        return epoch

    def feed(self, dataset: Dataset) -> Feed:
        """A feed for one pass."""
        return Feed(
            dataset,
            collate_fn=self.collate_fn,
            seed=self.seed,
            loader_workers=self.loader_workers,
            device=self.device,
        )

    def kept_feed(self, dataset: Dataset) -> Feed:
        """The training feed: the same from epoch to epoch, with its loader processes."""
        if self._kept is None or self._kept[0] is not dataset:
            self._kept = (dataset, self.feed(dataset))
        return self._kept[1]


def requests(epoch: Epoch, first_step: int, nodes: Sequence[int]) -> Iterator[Request]:
    """What a worker that runs *nodes* will ask for, from *first_step* to the end of the epoch."""
    for step in range(first_step, epoch.steps):
        shards = epoch.batch(step).shards
        for node in nodes:
            if len(shards[node]):
                yield Request(epoch.number, step, node, 0, shards[node])
