"""Calls that all workers make together, outside of steps. Their results are recorded, for workers that join later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from virtualflow.train import inference
from virtualflow.train.data import Collate, length_of
from virtualflow.train.early_results import Recorded
from virtualflow.train.journal import Journal
from virtualflow.train.loading import Loading
from virtualflow.train.packed_values import unpacked
from virtualflow.train.peers import Peers
from virtualflow.train.position import Loop
from virtualflow.train.seeding import generators_kept
from virtualflow.train.stages.staged_inference import StagedInference


class SharedCalls:
    """What a Trainer's ``evaluate``, ``predict``, ``map``, ``once``, ``broadcast`` and ``gather`` do."""

    def __init__(
        self,
        runs: inference.Inference | StagedInference,
        loop: Loop,
        peers: Peers,
        recorded: Recorded,
        loading: Loading,
        journal: Journal,
    ) -> None:
        self._loop = loop
        self._peers = peers
        self._recorded = recorded
        self._loading = loading
        self._journal = journal
        self._sizes = loading.schedule.at(0)
        self._inference = runs

    def evaluate(self, data: Any, metric_fn: inference.MetricFn, name: str) -> float:
        with generators_kept():
            return float(self._recorded(lambda: self._evaluate(data, metric_fn, name)))

    def _evaluate(self, data: Any, metric_fn: inference.MetricFn, name: str) -> float:
        dataset, collate_fn = self._loading.dataset_of(data, "evaluate")
        pass_ = inference.Pass(length_of(dataset, "evaluate"), self._sizes)
        with self._loading.feed(dataset, collate_fn) as feed:
            value = self._inference.evaluate(pass_, feed, metric_fn, self._global_step)
        self._journal.evaluated(self._global_step, name, value)
        return value

    def predict(self, data: Any, predict_fn: inference.PredictFn) -> Any:
        dataset, collate_fn = self._loading.dataset_of(data, "predict")
        pass_ = inference.Pass(length_of(dataset, "predict"), self._sizes)
        with generators_kept(), self._loading.feed(dataset, collate_fn) as feed:
            packed = self._recorded(lambda: self._inference.predict(pass_, feed, predict_fn, self._global_step))
        return inference.unpack(packed, pass_)

    def map(
        self, data: Any, function: inference.Function, batch_size: int | None, collate_fn: Collate | None
    ) -> list[Any]:
        dataset, own_collate = self._loading.dataset_of(data, "map")
        sizes = self._sizes if batch_size is None else (batch_size,) * len(self._sizes)
        pass_ = inference.Pass(length_of(dataset, "map"), sizes)
        with generators_kept(), self._loading.feed(dataset, collate_fn or own_collate) as feed:
            packed = self._recorded(lambda: self._inference.map(pass_, feed, function, self._global_step))
        return inference.in_order(packed, pass_)

    def once(self, function: Callable[[], object]) -> None:
        self._recorded(lambda: self._peers.once("once", self._global_step, function))

    def broadcast(self, value: Any) -> Any:
        return unpacked(self._recorded(lambda: self._peers.broadcast(self._global_step, value)))[0]["value"]

    def gather(self, value: Any) -> list[Any]:
        everyone = unpacked(self._recorded(lambda: self._peers.gather(self._global_step, value)))
        return [theirs["value"] for theirs in everyone]

    @property
    def _global_step(self) -> int:
        return self._loop.position.global_step
