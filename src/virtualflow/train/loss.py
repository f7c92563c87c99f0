"""What a user's functions may return, and what it means."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from virtualflow.errors import LossError
from virtualflow.train.state import flattened
from virtualflow.train.step_metrics import Reported, read_metrics


@dataclass(frozen=True, slots=True)
class Loss:
    """What a ``loss_fn`` may return besides a tensor: ``vf.Loss(total, weight=tokens, metrics={"tokens": tokens})``.

    Without *weight*, *value* is the mean over the shard's examples. A metric is a number, which is summed over the
    global batch, or ``(total, weight)``, whose mean is taken.
    """

    value: Tensor
    weight: Any = None
    metrics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeLoss:
    """The loss of one shard: its sum over a weight, and whether that weight is the number of examples.

    A weight that is a tensor is still on its device.
    """

    total: Tensor
    weight: float | Tensor
    is_mean: bool
    metrics: list[Reported] = field(default_factory=list)


def read_loss(returned: Any, examples: int) -> NodeLoss:
    """The loss that ``loss_fn`` *returned* for a shard: a mean over its examples, or ``(total, weight)``.

    Either may come with a dict of metrics: ``(loss, {...})``, or as a ``vf.Loss``.
    """
    given = returned if isinstance(returned, Loss) else _as_loss(returned)
    metrics = read_metrics(given.metrics)
    if given.weight is None:
        return NodeLoss(_scalar(given.value), float(examples), True, metrics)
    weight = given.weight
    if isinstance(weight, Tensor) and weight.requires_grad:
        raise LossError(
            "loss_fn returned (total, weight) with a weight that depends on the model, expected a number of examples "
            "or tokens, or a sum of weights. Two losses? Add them. A second value to look at? Return it by name: "
            '(loss, {"accuracy": (right, examples)}).'
        )
    later = isinstance(weight, Tensor) and weight.numel() == 1 and weight.device.type != "cpu"
    return NodeLoss(_scalar(given.value), weight if later else checked_loss_weight(weight, examples), False, metrics)


def _as_loss(returned: Any) -> Loss:
    if not isinstance(returned, tuple):
        return Loss(returned)
    if len(returned) == 2 and isinstance(returned[1], Mapping):
        return Loss(returned[0], None, returned[1])
    total, weight = _pair(returned, "loss_fn")
    return Loss(total, checked_weight(weight) if weight is None else weight)


def check_rows(batch: Any, examples: int, *, drawn: bool) -> None:
    """Whether a mean over *batch* is one over its *examples*, which it will be weighed by.

    Refuses what a function has *drawn* in another number than it was asked for. A ``collate_fn`` may leave examples
    out, which is warned about, or make several rows of each.
    """
    tensors = [value for _, value in flattened(batch, "") if isinstance(value, Tensor) and value.dim()]
    rows = {len(tensor) for tensor in tensors}
    if len(rows) != 1 or examples in rows or all(examples in tensor.shape[:2] for tensor in tensors):
        return  # it can't be known, or it is right
    number = rows.pop()
    if drawn:
        raise LossError(
            f"batch_fn returned {number} examples, and was asked for {examples}: batch_fn(size) draws the part of one "
            "virtual node, and the mean that loss_fn returns is weighed by size. Draw size examples; if the rows are "
            "something else, such as tokens, have loss_fn return (total, weight)."
        )
    if number % examples:
        warnings.warn(
            f"collate_fn made a batch with {number} rows of {examples} examples, and loss_fn returned a mean, which is "
            f"weighed by the {examples} examples. If examples were left out, or rows are something else, return "
            "(total, weight) from loss_fn: the sum, and how many it is a sum of.",
            stacklevel=2,
        )


def checked_loss_weight(weight: Any, examples: int) -> float:
    """The *weight* of a loss over *examples*; a warning for one that looks like a mean of something."""
    number = checked_weight(weight, "loss_fn")
    if examples > 1 and 0 < number < 1:
        warnings.warn(
            f"loss_fn returned (total, weight) with the weight {number:.4g} for {examples} examples. The step's loss "
            "is the sum of all totals divided by the sum of all weights, so a weight is a number of examples or "
            "tokens, or a sum of weights. Is it an accuracy or another mean? Return that by name: (loss, "
            '{"accuracy": (right, examples)}).',
            stacklevel=2,
        )
    return number


def read_metric(returned: Any) -> tuple[float, float]:
    """The ``(total, weight)`` that ``metric_fn`` *returned* for a shard."""
    if not isinstance(returned, tuple):
        raise LossError(
            f"metric_fn returned {_describe(returned)}, expected (total, weight): for an accuracy the number of right "
            "answers and the number of examples. Means of shards of unequal size can't be combined."
        )
    total, weight = _pair(returned, "metric_fn")
    return _number(total, "metric_fn", "total"), checked_weight(weight, "metric_fn")


def checked_weight(weight: Any, function: str = "loss_fn") -> float:
    """The *weight* that a function returned, as a number of examples or tokens."""
    number = _number(weight, function, "weight")
    if not 0 <= number < math.inf:
        raise LossError(
            f"{function} returned the weight {number}, expected a number of examples or tokens: 0 or more, and finite. "
            "The step's mean is the sum of all totals divided by the sum of all weights."
        )
    return number


def _pair(returned: tuple[Any, ...], function: str) -> tuple[Any, Any]:
    if len(returned) != 2:
        raise LossError(f"{function} returned a tuple of {len(returned)} values, expected (total, weight)")
    total, weight = returned
    return total, weight


def _number(value: Any, function: str, what: str) -> float:
    """*value* as a float: a number of Python's or numpy's, or a tensor with one element."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if not hasattr(value, "__float__") or isinstance(value, Tensor):
        raise LossError(f"{function} returned {_describe(value)} as the {what}, expected one number")
    return float(value)


def _scalar(value: Any) -> Tensor:
    if isinstance(value, float):
        raise LossError(
            "loss_fn returned a float, which has no gradient: return the tensor itself, without .item() or float()"
        )
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise LossError(
            f"loss_fn returned {_describe(value)}, expected one number: a mean over the examples, or (total, weight). "
            "Reduce it first, for example with .mean()."
        )
    if not value.requires_grad:
        raise LossError(
            "the loss that loss_fn returned does not depend on any parameter that requires a gradient. Was it "
            "detached, computed under torch.no_grad(), or is the whole model frozen?"
        )
    if not value.is_floating_point():
        raise LossError(f"loss_fn returned a loss of type {value.dtype}, expected floating point")
    return value.reshape(()) if value.dim() else value


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"a value of type {type(value).__name__}"
