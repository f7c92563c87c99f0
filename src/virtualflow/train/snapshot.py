"""The committed state of a job: everything the next step needs, taken out of the live objects and put back in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from virtualflow.core.grid import Grid
from virtualflow.errors import CheckpointError
from virtualflow.train.reduction import ExactReduction, Reduction
from virtualflow.train.state import named_buffers, named_parameters, plain_name
from virtualflow.train.sums import Sums


@dataclass(slots=True)
class Position:
    """Where the job stands: *step* of *epoch* comes next, unless the epoch is finished."""

    epoch: int = 0
    step: int = 0
    finished: bool = False
    global_step: int = 0
    chain: str = ""

    @property
    def next_epoch(self) -> int:
        return self.epoch + 1 if self.finished else self.epoch


@dataclass(frozen=True, slots=True)
class Live:
    """The objects that hold a job's state."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    reduction: Reduction
    state: tuple[Any, ...]
    grad_scaler: torch.amp.GradScaler | None


def take(live: Live, position: Position) -> dict[str, Any]:
    """The state in *live*, as tensors and plain values."""
    parameters = named_parameters(live.model)
    return {
        "position": asdict(position),
        "parameters": {name: parameter.detach() for name, parameter in parameters.items()},
        "requires_grad": {name: parameter.requires_grad for name, parameter in parameters.items()},
        "buffers": {buffer.name: buffer.current() for buffer in named_buffers(live.model)},
        "training": {plain_name(name): module.training for name, module in live.model.named_modules()},
        "optimizer": live.optimizer.state_dict(),
        "grids": {kind: {i: g.exponent for i, g in sums.grids.items()} for kind, sums in _sums(live.reduction)},
        "state": [item.state_dict() for item in live.state],
        "grad_scaler": live.grad_scaler.state_dict() if live.grad_scaler is not None else None,
    }


def put(live: Live, saved: dict[str, Any]) -> Position:
    """Set *live* to what ``take`` returned. Nothing is touched if it does not fit."""
    parameters = named_parameters(live.model)
    buffers = {buffer.name: buffer for buffer in named_buffers(live.model)}
    _check_names("parameter", saved["parameters"], parameters)
    _check_names("buffer", saved["buffers"], {name: buffer.tensor for name, buffer in buffers.items()})
    if len(saved["state"]) != len(live.state):
        raise CheckpointError(
            f"the checkpoint holds {len(saved['state'])} objects of state=[...], this Trainer has {len(live.state)}"
        )
    if (saved["grad_scaler"] is None) != (live.grad_scaler is None):
        raise CheckpointError("either the checkpoint or this Trainer has a grad_scaler, and the other has none")
    try:
        live.optimizer.load_state_dict(saved["optimizer"])
    except ValueError as error:
        raise CheckpointError(f"the checkpoint's optimizer is not this one: {error}") from error
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.requires_grad_(saved["requires_grad"][name])
            parameter.copy_(saved["parameters"][name])
        for name, buffer in buffers.items():
            buffer.current().copy_(saved["buffers"][name])
    for name, module in live.model.named_modules():
        module.training = saved["training"].get(plain_name(name), module.training)
    for item, contents in zip(live.state, saved["state"], strict=True):
        item.load_state_dict(contents)
    if live.grad_scaler is not None:
        live.grad_scaler.load_state_dict(saved["grad_scaler"])
    for kind, sums in _sums(live.reduction):
        sums.grids = {index: Grid(exponent) for index, exponent in saved["grids"].get(kind, {}).items()}
    return Position(**saved["position"])


def _sums(reduction: Reduction) -> Iterable[tuple[str, Sums]]:
    yield "buffers", reduction.buffer_sums
    if isinstance(reduction, ExactReduction):
        yield "gradients", reduction.gradient_sums


def _check_names(kind: str, saved: dict[str, Tensor], mine: dict[str, Any]) -> None:
    if odd := saved.keys() ^ mine.keys():
        where = "the model" if min(odd) in mine else "the checkpoint"
        raise CheckpointError(f"the checkpoint is of another model: only {where} has the {kind} {min(odd)!r}")
    for name, tensor in saved.items():
        if tensor.shape != mine[name].shape or tensor.dtype != mine[name].dtype:
            raise CheckpointError(
                f"the checkpoint is of another model: its {kind} {name!r} is {tensor.dtype} {tuple(tensor.shape)}, the "
                f"model's is {mine[name].dtype} {tuple(mine[name].shape)}"
            )
