"""What decides the result of a step, besides the state that it starts from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from virtualflow.core.verdicts import rate_of
from virtualflow.errors import ConfigError
from virtualflow.train.phases import LossFn


@dataclass(frozen=True, slots=True)
class StepChoices:
    """How steps are to be made, as the script has chosen for all of them. Raises ConfigError."""

    reduction: str = "exact"
    on_nan: str = "raise"
    clip_grad_norm: float | None = None
    grad_scaler: torch.amp.GradScaler | None = None
    on_gradients: Callable[[nn.Module], None] | None = None  # just before the update
    backward: Callable[[Tensor], None] = Tensor.backward
    sentinel: str | float = 0  # the part of each batch that a sentinel watches, if the job does not say it

    def __post_init__(self) -> None:
        rate_of(self.sentinel)
        if self.reduction not in ("exact", "fast"):
            raise ConfigError(f"reduction={self.reduction!r}, expected 'exact' (the same bits anywhere) or 'fast'")
        if self.on_nan not in ("raise", "continue"):
            raise ConfigError(f"on_nan={self.on_nan!r}, expected 'raise' or 'continue'")
        if self.clip_grad_norm is not None and not self.clip_grad_norm > 0:
            raise ConfigError(f"clip_grad_norm={self.clip_grad_norm}, expected a number above 0, or None")

    @property
    def is_exact(self) -> bool:
        return self.reduction == "exact"


@dataclass(frozen=True, slots=True)
class StepSettings:
    """What decides a step's result, besides the state it starts from."""

    loss_fn: LossFn
    seed: int
    virtual_nodes: int
    trainer: int  # its number in this process
    clip_grad_norm: float | None = None
    on_nan: str = "raise"
    mixed: bool = False  # device types, whose kernels round differently: scalars are computed once
    phase: str = ""
    on_gradients: Callable[[nn.Module], None] | None = None  # just before the update
    backward: Callable[[Tensor], None] = Tensor.backward
