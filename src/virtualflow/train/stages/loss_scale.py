"""A GradScaler in a job whose model is cut: no device has all gradients, so it is told of one that stands for them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from virtualflow.train import other_optimizers


class LossScale:
    """Scales the loss of each virtual node with *scaler*, if there is one; all workers change the scale alike."""

    def __init__(self, scaler: torch.amp.GradScaler | None, device: torch.device) -> None:
        self.is_given = scaler is not None
        self._scaler = scaler if scaler is not None else torch.amp.GradScaler(device.type, enabled=False)
        self._gradient = nn.Parameter(torch.zeros(1, device=device))
        self._stands_for_all = torch.optim.SGD([self._gradient], lr=0.0)
        other_optimizers.declare((self._stands_for_all,))
        # It makes its scale when it is first used, which a worker without the last stage would not do.
        self._scaler.scale(torch.zeros((), device=device))

    def scaled(self, total: Tensor) -> Tensor:
        """The loss to begin a backward with."""
        scaled: Tensor = self._scaler.scale(total)
        return scaled

    @property
    def now(self) -> float:
        """By what gradients are too large: 1.0 without a scaler."""
        return float(self._scaler.get_scale())

    def is_overflow(self, norm: float) -> bool:
        """Whether the step is left out, since gradients of this *norm* come from a scale that was too large."""
        return self._scaler.is_enabled() and not abs(norm) < float("inf")

    def update(self, *, overflowed: bool) -> None:
        """Make the scale smaller after an overflow, and larger after many steps without one."""
        self._gradient.grad = torch.full_like(self._gradient, float("inf") if overflowed else 0.0)
        self._scaler.unscale_(self._stands_for_all)
        self._scaler.update()
