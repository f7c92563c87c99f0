"""One try at a step, and what its virtual nodes have left behind."""

from __future__ import annotations

from dataclasses import dataclass

from virtualflow.core.sharding import GlobalBatch
from virtualflow.train.data import Request
from virtualflow.train.loss import checked_loss_weight
from virtualflow.train.readback import Later
from virtualflow.train.scalars import NodeScalars
from virtualflow.train.step_metrics import Numbers


@dataclass(slots=True)
class Attempt:
    """One try at a step; a replay is another."""

    batch: GlobalBatch
    global_step: int
    number: int
    is_divided: bool = False
    squares: Later[float] | None = None  # of the gradient, if their sum came for free
    accumulator: str | None = None  # a hash of the sums, for the audit

    def request(self, node: int) -> Request:
        return Request(self.batch.epoch, self.batch.step, node, self.number, self.batch.shards[node])


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What a virtual node has left behind; its numbers may still be on their way."""

    node: int
    examples: int
    ids: int
    is_mean: bool
    total: Later[float]
    weight: float | Later[float]
    integers: Later[list[int]]
    born: bool
    unnamed: bool  # whether it has metrics that have no slot yet
    metrics: dict[str, Later[Numbers]]

    def scalars(self, unclean: int) -> NodeScalars:
        """The same, read, with 1 + the first gradient that was not finite."""
        weight = self.weight if isinstance(self.weight, float) else checked_loss_weight(self.weight(), self.examples)
        total = self.total() * (self.examples if self.is_mean else 1)
        metrics = {name: numbers() for name, numbers in self.metrics.items()}
        return NodeScalars(
            total, weight, self.ids, self.integers()[0], unclean, self.is_mean, self.born, self.unnamed, metrics
        )
