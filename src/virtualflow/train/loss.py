"""What a user's functions may return, and what it means."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from virtualflow.errors import LossError


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of one shard: its sum over a weight, and whether that weight is the number of examples."""

    total: Tensor
    weight: float
    is_mean: bool


def read_loss(returned: Any, examples: int) -> Loss:
    """The loss that ``loss_fn`` *returned* for a shard: a mean over its examples, or ``(total, weight)``."""
    if isinstance(returned, tuple):
        total, weight = _pair(returned, "loss_fn")
        return Loss(_scalar(total), weight, is_mean=False)
    return Loss(_scalar(returned), float(examples), is_mean=True)


def read_metric(returned: Any) -> tuple[float, float]:
    """The ``(total, weight)`` that ``metric_fn`` *returned* for a shard."""
    if not isinstance(returned, tuple):
        raise LossError(
            f"metric_fn returned {_describe(returned)}, expected (total, weight): for an accuracy the number of right "
            "answers and the number of examples. Means of shards of unequal size can't be combined."
        )
    total, weight = _pair(returned, "metric_fn")
    return _number(total, "metric_fn", "total"), weight


def _pair(returned: tuple[Any, ...], function: str) -> tuple[Any, float]:
    if len(returned) != 2:
        raise LossError(f"{function} returned a tuple of {len(returned)} values, expected (total, weight)")
    total, weight = returned
    if isinstance(weight, Mapping):
        raise LossError(
            f"{function} returned (loss, dict), expected a mean over the examples, or (total, weight). Return the loss "
            "alone; compute other values of the model in the metric_fn of trainer.evaluate."
        )
    number = _number(weight, function, "weight")
    if not 0 <= number < math.inf:
        raise LossError(
            f"{function} returned the weight {number}, expected a number of examples or tokens: 0 or more, and finite. "
            "The step's mean is the sum of all totals divided by the sum of all weights."
        )
    return total, number


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
