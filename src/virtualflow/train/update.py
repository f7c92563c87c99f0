"""The update of a step: unscale, clip, and let the optimizers follow the gradient that all workers hold."""

from __future__ import annotations

import struct

import torch
from torch import Tensor, nn

from virtualflow.train.peers import Peers
from virtualflow.train.reduction import Reduction
from virtualflow.train.state import Optimizers
from virtualflow.train.step_settings import StepSettings


class Update:
    """Makes the updates of one phase, the same ones on every worker."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Optimizers,
        reduction: Reduction,
        settings: StepSettings,
        grad_scaler: torch.amp.GradScaler | None,
        peers: Peers,
    ) -> None:
        self._model = model
        self._optimizers = optimizers
        self._reduction = reduction
        self._settings = settings
        self._scaler = grad_scaler
        self._peers = peers

    def make(self, norm: float | None, global_step: int) -> float | None:
        """Update the model; return the norm of the gradient before it was clipped. *norm* is it, if it is known."""
        limit = self._settings.clip_grad_norm
        if self._scaler is not None:
            scale = self._scaler.get_scale()
            for optimizer in self._optimizers:
                self._scaler.unscale_(optimizer)
            norm = None if norm is None else norm / scale
        if self._settings.on_gradients is not None:
            self._settings.on_gradients(self._model)
            norm = None if limit is not None else norm  # they may be others now
        if limit is not None:
            gradients = [parameter.grad for parameter in self._reduction.parameters if parameter.grad is not None]
            if norm is None:
                norm = self.agreed(float(torch.nn.utils.get_total_norm(gradients)), global_step)
            clip(gradients, limit, norm)
        if self._scaler is not None:
            for optimizer in self._optimizers:
                self._scaler.step(optimizer)
            self._scaler.update()
        else:
            for optimizer in self._optimizers:
                optimizer.step()
        return norm

    def agreed(self, norm: float, global_step: int) -> float:
        """*norm*; on mixed device types the lead's, since each type rounds differently."""
        return self._leads(norm, global_step) if self._settings.mixed else norm

    def _leads(self, norm: float, global_step: int) -> float:
        """The lead's *norm*, to the bit."""
        bits = int.from_bytes(struct.pack("<d", norm), "little", signed=True)
        shared = self._peers.from_lead("step", global_step, lambda: bits)
        return float(struct.unpack("<d", shared.to_bytes(8, "little", signed=True))[0])


def clip(gradients: list[Tensor], limit: float, norm: float) -> None:
    """Scale *gradients*, of that *norm*, down to *limit*."""
    factor = limit / (norm + 1e-6)
    if gradients and not factor >= 1.0:
        torch._foreach_mul_(gradients, factor)
