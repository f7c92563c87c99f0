"""Numbers besides the loss that virtual nodes report: they travel in the step's agreement, each under its name.

A worker without examples can't know the names, and the agreement has slots of fixed length. So the names are part of
the job's state. A step in which a new one appears is replayed, as one is whose forward makes a buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from virtualflow.errors import LossError
from virtualflow.train.readback import Later, Readback

MOST = 256
Numbers = tuple[float, float]  # a total and its weight; a sum has the weight 0


@dataclass(frozen=True, slots=True, order=True)
class Metric:
    """A name, and whether the mean (total over weight) counts, or the sum."""

    name: str
    is_mean: bool


@dataclass(frozen=True, slots=True)
class Reported:
    """What one virtual node reports of one metric; it may still be on its device."""

    metric: Metric
    total: float | Tensor
    weight: float | Tensor = 0.0

    def later(self, readback: Readback) -> Later[Numbers]:
        """The numbers, as soon as they are read."""
        total, weight = (
            readback.number(value) if isinstance(value, Tensor) else _known(value)
            for value in (self.total, self.weight)
        )
        return lambda: (total(), _checked(self.metric.name, weight()))


def read_metrics(returned: Any) -> list[Reported]:
    """The metrics that a ``loss_fn`` *returned*: for each name a number, or ``(total, weight)``."""
    if not isinstance(returned, Mapping):
        raise LossError(f"loss_fn returned metrics of type {type(returned).__name__}, expected a dict by name")
    return [_reported(name, value) for name, value in returned.items()]


def _reported(name: Any, value: Any) -> Reported:
    if not isinstance(name, str) or not name:
        raise LossError(f"loss_fn returned a metric under the name {name!r}, expected a string")
    if not isinstance(value, tuple):
        return Reported(Metric(name, is_mean=False), _number(name, value))
    if len(value) != 2:
        raise LossError(
            f"loss_fn returned a tuple of {len(value)} values for the metric {name!r}, expected a number, which is "
            "summed over the global batch, or (total, weight), whose mean is taken"
        )
    total, weight = value
    return Reported(Metric(name, is_mean=True), _number(name, total), _number(name, weight))


def _number(name: str, value: Any) -> float | Tensor:
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        return value.detach()
    if isinstance(value, Tensor) or not hasattr(value, "__float__"):
        what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise LossError(f"loss_fn returned {what} for the metric {name!r}, expected one number, or (total, weight)")
    return float(value)


def _checked(name: str, weight: float) -> float:
    if not 0 <= weight < float("inf"):
        raise LossError(f"loss_fn returned the weight {weight} for the metric {name!r}, expected 0 or more, and finite")
    return weight


def _known(value: float) -> Later[float]:
    return lambda: value


class MetricNames:
    """The metrics of a job, in the order of their slots: the same on every worker."""

    def __init__(self) -> None:
        self.known: list[Metric] = []
        self.unknown: set[Metric] = set()  # that virtual nodes of this worker have reported in this attempt

    def note(self, reported: Iterable[Reported]) -> bool:
        """Whether a virtual node reports one that has no slot yet."""
        new = {report.metric for report in reported}.difference(self.known)
        self.unknown |= new
        return bool(new)

    def add(self, everyone: Iterable[Iterable[tuple[str, bool]]]) -> None:
        """Give a slot to each metric that some worker has reported. Raises LossError if one is both mean and sum."""
        metrics = {Metric(name, is_mean) for theirs in everyone for name, is_mean in theirs}
        self.known += sorted(metrics.difference(self.known))
        self.unknown = set()
        names = [metric.name for metric in self.known]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise LossError(
                f"loss_fn returned the metric {twice[0]!r} once as a number and once as (total, weight). A number is "
                "summed over the global batch, of (total, weight) the mean is taken: choose one."
            )
        if len(names) > MOST:
            raise LossError(
                f"loss_fn has returned {len(names)} metrics by now, and a step carries at most {MOST}. Use a fixed set "
                "of names, without a step or an index in them."
            )

    def take(self) -> list[tuple[str, bool]]:
        """The names, as part of the job's state."""
        return [(metric.name, metric.is_mean) for metric in self.known]

    def put(self, saved: Iterable[tuple[str, bool]]) -> None:
        """Go on from what ``take`` returned."""
        self.known = [Metric(name, is_mean) for name, is_mean in saved]

    def combined(self, nodes: Iterable[Mapping[str, Numbers]]) -> dict[str, float]:
        """The metrics of the global batch, from those of its virtual nodes, in their order."""
        nodes = list(nodes)
        return {
            metric.name: _combined(metric, [node[metric.name] for node in nodes if metric.name in node])
            for metric in self.known
            if any(metric.name in node for node in nodes)
        }


def _combined(metric: Metric, numbers: list[Numbers]) -> float:
    total = sum(total for total, _ in numbers)
    if not metric.is_mean:
        return total
    weight = sum(weight for _, weight in numbers)
    return total / weight if weight else float("nan")


class StepLoss(float):
    """What ``trainer.step`` returns: the mean loss of the global batch, and its other ``metrics`` by name."""

    metrics: dict[str, float]

    def __new__(cls, loss: float, metrics: dict[str, float]) -> StepLoss:
        value = super().__new__(cls, loss)
        value.metrics = metrics
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        return StepLoss, (float(self), self.metrics)
