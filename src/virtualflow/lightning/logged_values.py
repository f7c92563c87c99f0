"""``self.log`` inside of a step: collected where a part of the batch is computed, and logged once, on every worker."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.data import extract_batch_size
from torch import Tensor
from torchmetrics import Metric

from virtualflow.errors import ConfigError, HiddenStateError

_SIGNATURE = inspect.signature(LightningModule.log)
_LOCAL = ("self", "name", "value", "batch_size", "enable_graph", "sync_dist", "sync_dist_group", "metric_attribute")
_PLAIN = (bool, int, float, str, type(None))
_CONTAINERS = (list, dict, set)


@dataclass(frozen=True, slots=True)
class LogCall:
    """One call of ``self.log``: *weight* examples have this *value*."""

    name: str
    value: Tensor | float
    weight: int
    options: dict[str, Any]
    is_weighed: bool  # by the user: batch_size=

    def total(self) -> Any:
        """The value times its weight."""
        return (self.value.detach().double() if isinstance(self.value, Tensor) else self.value) * self.weight


@contextmanager
def collected(module: LightningModule, batch: Any, advice: str) -> Iterator[list[LogCall]]:
    """What ``self.log`` gets meanwhile. Raises HiddenStateError if *module* keeps anything else of *batch*."""
    entries: list[LogCall] = []
    before = _kept_by(module)
    module.log = lambda *args, **options: entries.append(_entry(module, batch, advice, *args, **options))
    try:
        yield entries
    finally:
        del module.__dict__["log"]
    after = _kept_by(module)
    if changed := [name for name in {**before, **after} if before.get(name) != after.get(name)]:
        raise HiddenStateError(
            f"{module._current_fx_name} keeps something in self.{changed[0]}. A worker sees but a part of the batches, "
            f"and a step may be computed twice, so that would depend on the devices. {advice}"
        )


def _entry(module: LightningModule, batch: Any, advice: str, *args: Any, **options: Any) -> LogCall:
    given = dict(_SIGNATURE.bind(module, *args, **options).arguments)
    name, value, size = given["name"], given["value"], given.get("batch_size")
    if not isinstance(value, Tensor | int | float):
        raise ConfigError(
            f"self.log({name!r}, ...) in {module._current_fx_name} got a {type(value).__name__}, expected a number: "
            "what a metric object has counted differs by worker. Log a mean over the batch (batch_size= is its weight)."
            f" For anything else: {advice}"
        )
    kept = {key: item for key, item in given.items() if key not in _LOCAL}
    reduce_fx = kept.get("reduce_fx", "mean")
    kept["reduce_fx"] = reduce_fx.lower() if isinstance(reduce_fx, str) else getattr(reduce_fx, "__name__", "")
    return LogCall(name, value, size if size is not None else extract_batch_size(batch), kept, size is not None)


def as_metrics(entries: list[LogCall]) -> dict[str, Any]:
    """*entries* of a training step as metrics of a ``loss_fn``; weights that a user gives have names of their own."""
    metrics: dict[str, Any] = {}
    for entry in entries:
        reduction = entry.options["reduce_fx"]
        if reduction not in ("mean", "avg", "sum"):
            raise ConfigError(
                f"self.log({entry.name!r}, reduce_fx={reduction!r}) in training_step: over the virtual nodes of a "
                "batch, means and sums are taken. Use one of these, or log it in validation_step."
            )
        if reduction == "sum":
            metrics[entry.name] = metrics.get(entry.name, 0.0) + entry.value
        else:
            total, weight = metrics.get(entry.name, (0.0, 0))
            metrics[entry.name] = (total + entry.total(), weight + entry.weight)
        if entry.is_weighed:
            metrics[weight_of(entry.name)] = metrics.get(weight_of(entry.name), 0) + entry.weight
    return metrics


def weight_of(name: str) -> str:
    """Under which name the summed weight of the metric *name* travels."""
    return f"{name} (weight)"


def _kept_by(module: LightningModule) -> dict[str, Any]:
    """What a step of the user's may change besides tensors: numbers, lengths of containers, metrics' counts."""
    values: dict[str, Any] = {}
    for name, value in vars(module).items():
        if not name.startswith("_") and isinstance(value, (*_PLAIN, *_CONTAINERS)):
            values[name] = len(value) if isinstance(value, _CONTAINERS) else value
    for name, metric in module.named_modules():
        if isinstance(metric, Metric):
            values[name] = metric.update_count
    return values
