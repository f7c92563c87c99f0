"""What decides the result of a step, besides the state that it starts from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from virtualflow.train.phases import LossFn


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
