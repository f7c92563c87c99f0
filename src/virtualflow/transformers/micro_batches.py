"""The training data of a transformers Trainer: its own DataLoader's micro-batches, as virtual nodes see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
from torch.utils.data import DataLoader
from transformers.trainer_utils import seed_worker

from virtualflow.core.sharding import EpochPlan, GlobalBatch, cut
from virtualflow.train.sources import TrainingData, from_loader


class Updates:
    """An epoch whose steps take several micro-batches each: one for each virtual node, or cut to given node sizes."""

    def __init__(self, micro: EpochPlan, accumulation: int, sizes: Sequence[int] | None) -> None:
        self.number = micro.number
        self.steps = -(-micro.steps // accumulation)
        self._micro = micro
        self._accumulation = accumulation
        self._bounds = (0, *accumulate(sizes)) if sizes is not None else None

    def batch(self, step: int) -> GlobalBatch:
        """The global batch of *step*. In a short last one the last virtual nodes have nothing."""
        first = step * self._accumulation
        some = [self._micro.batch(n) for n in range(first, min(first + self._accumulation, self._micro.steps))]
        shards = tuple(batch.shards[0] for batch in some)
        if self._bounds is not None:
            shards = cut(np.concatenate(shards), self._bounds)
        empty = (np.empty(0, np.int64),) * (self._accumulation - len(shards))
        return GlobalBatch(self.number, step, shards + empty, some[0].order)


def training_data(loader: Any, args: Any, sizes: Sequence[int] | None) -> TrainingData:
    """What *loader* trains on under *args*; *sizes* are those of the virtual nodes, if they are no micro-batches."""
    seed = args.data_seed if args.data_seed is not None else args.seed
    sampler: Any = getattr(loader.batch_sampler, "sampler", None)
    if hasattr(sampler, "initial_seed"):
        sampler.initial_seed = seed  # accelerate's own takes whatever torch was seeded with last
    if getattr(loader.worker_init_fn, "func", None) is seed_worker:
        loader.worker_init_fn = None  # it seeds loader processes by their rank; here every example has a seed
    source = from_loader(loader, (loader.batch_size or args.train_batch_size,), seed)
    plan = partial(_updates, source, args.gradient_accumulation_steps, sizes)
    return replace(source, plan=plan)


def _updates(source: TrainingData, accumulation: int, sizes: Sequence[int] | None, number: int) -> EpochPlan:
    return Updates(source.plan(number), accumulation, sizes)


def numbers(count: int) -> DataLoader[Any]:
    """A loader that gives the numbers of micro-batches: transformers' loop counts and skips them."""
    return DataLoader(range(count), batch_size=1, collate_fn=_only)  # type: ignore[arg-type]


def _only(batch: list[int]) -> int:
    return batch[0]
