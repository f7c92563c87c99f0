"""Passes over the training data: which batch comes next, and what is due between two of them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Generator
from typing import Any

from virtualflow.core.seeds import derive
from virtualflow.core.sharding import EpochPlan, GlobalBatch
from virtualflow.errors import ConfigError
from virtualflow.train import other_optimizers
from virtualflow.train.boundary import Boundary
from virtualflow.train.comparisons import Comparisons
from virtualflow.train.data import Feed
from virtualflow.train.entrance import Entrance
from virtualflow.train.instruments import Engine, Instruments
from virtualflow.train.journal import Journal
from virtualflow.train.loading import Loading, requests
from virtualflow.train.open_pass import OpenPass
from virtualflow.train.position import Loop
from virtualflow.train.saving import Checkpoints
from virtualflow.train.seeding import reseed
from virtualflow.train.sharded.collection import job_digest
from virtualflow.train.sources import TrainingData


class Passes:
    """Hands out the global batches of one epoch after another, to the script's loop or to somebody else's."""

    def __init__(
        self,
        engine: Engine,
        instruments: Instruments,
        loop: Loop,
        loading: Loading,
        entrance: Entrance,
        boundary: Boundary,
        comparisons: Comparisons,
        checkpoints: Checkpoints,
        journal: Journal,
    ) -> None:
        self._engine = engine
        self._instruments = instruments
        self._loop = loop
        self._loading = loading
        self._entrance = entrance
        self._boundary = boundary
        self._comparisons = comparisons
        self._checkpoints = checkpoints
        self._journal = journal
        self._announced_generation = -1  # whose shards the feed knows of
        self._iterator: Callable[[], Generator[GlobalBatch] | None] = lambda: None  # that the script has
        self._feed: Feed | None = None  # of the pass that was begun last

    def batches(self, describe: Callable[[], TrainingData]) -> Generator[GlobalBatch]:
        """The batches of the epoch that the script is in, from where the job stands."""
        iterator = self._batches(describe)
        self._iterator = weakref.ref(iterator)
        return iterator

    def _batches(self, describe: Callable[[], TrainingData]) -> Generator[GlobalBatch]:
        loop = self._loop
        loop.begin_pass()
        source = describe()
        plan = source.plan(loop.position.epoch)
        feed = self._new_feed(source, plan)
        self._entrance.enter_pass(self._is_enumerated)
        examples = source.length or sum(self._loading.schedule.at(0))
        self._instruments.begin_pass(self._engine, self._boundary.settle, feed, examples)
        first = loop.position.step
        self._journal.epoch_started(plan, loop.epochs, first)
        try:
            for step in range(first, plan.steps):
                other_optimizers.watch(training=True)
                self._cross(plan, step, feed)
                batch = plan.batch(step)
                reseed(derive(self._loading.seed, "batch", batch.epoch, step))
                yield batch
            self._close(plan)
        finally:
            other_optimizers.watch(training=False)
            feed.close()
            loop.finish_epoch()

    def open(self, data: Any, epoch: int, epochs: int) -> OpenPass:
        """Pass number *epoch* of *epochs* over *data*, for a loop that is not the Trainer's."""
        self._loop.open_pass(epoch, epochs)
        source = data if isinstance(data, TrainingData) else self._loading.source(data)
        plan = source.plan(epoch)
        feed = self._new_feed(source, plan)
        self._entrance.open_pass()
        first = self._loop.position.step
        self._journal.epoch_started(plan, epochs, first)

        def cross(step: int) -> None:
            self._cross(plan, step, feed)
            reseed(derive(self._loading.seed, "batch", plan.number, step))

        def close() -> None:
            self._close(plan)
            feed.close()
            self._loop.finish_epoch()

        return OpenPass(plan, first, cross, close)

    def feed_of(self, batch: GlobalBatch) -> Feed:
        """What loads the shards of *batch*. Raises ConfigError if it is none that a pass has yielded."""
        if not isinstance(batch, GlobalBatch) or self._feed is None:
            raise ConfigError(
                f"trainer.step got a {type(batch).__name__}, expected what `for batch in trainer.batches(dataset):` "
                "yields: indices, from which each device loads its own shards."
            )
        return self._feed

    def _new_feed(self, source: TrainingData, plan: EpochPlan) -> Feed:
        self._feed = feed = self._loading.kept_feed(source)
        self._engine.live.samples.begin(feed, plan.number, source.length)
        self._announced_generation = -1
        return feed

    def _is_enumerated(self) -> bool:
        return any(isinstance(holder, enumerate) for holder in gc.get_referrers(self._iterator()))

    def _cross(self, plan: EpochPlan, step: int, feed: Feed) -> None:
        """Do what is due before *step*."""
        membership = self._engine.peers.membership
        self._loop.position.step = step  # the script may have skipped a batch
        self._boundary.cross(plan, step)
        self._comparisons.before_step(step)
        if self._announced_generation != membership.generation:
            feed.announce(requests(plan, step, self._engine.nodes()))
            self._announced_generation = membership.generation

    def _close(self, plan: EpochPlan) -> None:
        """The epoch's last step is made: workers compare what they hold, and the certificate gets its digest."""
        live, position = self._engine.live, self._loop.position
        self._comparisons.end_epoch(plan.number)
        value = job_digest(live, self._loop, self._engine.peers)
        self._journal.regrouped(position.global_step)  # the last step of a job has no boundary after it
        self._journal.epoch_ended(plan, position.global_step, value)
        position.step = plan.steps
        self._checkpoints.mark_end_of_pass(value)
