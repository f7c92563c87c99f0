"""The committed state of a job: everything the next step needs, taken out of the live objects and put back in."""

from __future__ import annotations

import io
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from virtualflow.core import faults
from virtualflow.core.membership import Group
from virtualflow.errors import CheckpointError
from virtualflow.train import optimizer_state
from virtualflow.train.accumulate import is_dense
from virtualflow.train.buffers import Buffers, register
from virtualflow.train.position import Position
from virtualflow.train.reduction import Reduction
from virtualflow.train.samples import Samples
from virtualflow.train.settings import Settings
from virtualflow.train.state import Parts, named_parameters
from virtualflow.train.variables import Variables

SMALL_BYTES = 1 << 20  # tensors below this travel together
_TENSOR = "a tensor of the state"


@dataclass(frozen=True, slots=True)
class Live:
    """The objects that hold a job's state."""

    parts: Parts
    optimizer: torch.optim.Optimizer
    reduction: Reduction
    buffers: Buffers
    settings: Settings
    state: tuple[Any, ...]
    grad_scaler: torch.amp.GradScaler | None
    samples: Samples
    variables: Variables


def take(live: Live, position: Position) -> dict[str, Any]:
    """The state in *live*, as tensors and plain values."""
    return {
        "position": asdict(position),
        "parameters": {name: parameter.detach() for name, parameter in live.parts.parameters().items()},
        "buffers": {name: tensor for name, _, _, tensor in live.parts.buffers()},
        "form of buffers": live.buffers.form(),
        "extra": {name: module.get_extra_state() for name, module in _with_extra_state(live.parts)},
        "optimizer": live.optimizer.state_dict(),
        "settings": live.settings.take(),
        "grids": live.reduction.grids,
        "samples": live.samples.take() if position.is_inside else {},
        "variables": live.variables.changed,
        "grad_scaler": live.grad_scaler.state_dict() if live.grad_scaler is not None else None,
    }


def put(live: Live, saved: dict[str, Any]) -> Position:
    """Set *live* to what ``take`` returned. Nothing is touched if it does not fit."""
    parameters = live.parts.parameters()
    buffers = {name: (module, key, tensor) for name, module, key, tensor in live.parts.buffers()}
    form = saved["form of buffers"]
    _check_names("parameter", saved["parameters"], parameters, set())
    free = form["own form"].keys() | live.buffers.own_form.keys()
    _check_names("buffer", saved["buffers"], {name: found[2] for name, found in buffers.items()}, free)
    if len(saved["settings"]["state"]) != len(live.state):
        raise CheckpointError(
            f"the checkpoint holds {len(saved['settings']['state'])} objects of state=[...], this Trainer has "
            f"{len(live.state)}"
        )
    if (saved["grad_scaler"] is None) != (live.grad_scaler is None):
        raise CheckpointError("either the checkpoint or this Trainer has a grad_scaler, and the other has none")
    optimizer_state.regroup(live.optimizer, parameters, saved["settings"]["groups"])
    optimizer_state.put(live.optimizer, saved["optimizer"])
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(saved["parameters"][name])
        for name, tensor in saved["buffers"].items():
            _put_buffer(live.parts, buffers, name, tensor, form["own form"].get(name, True))
    for name, module in _with_extra_state(live.parts):
        module.set_extra_state(saved["extra"][name])
    live.settings.put(saved["settings"])
    live.buffers.set_form(form)
    live.reduction.adopt(named_parameters(live.parts.model))
    live.reduction.buffer_sums.adopt()
    if live.grad_scaler is not None:
        live.grad_scaler.load_state_dict(saved["grad_scaler"])
    live.reduction.grids = saved["grids"]
    return Position(**saved["position"])


def _with_extra_state(parts: Parts) -> list[tuple[str, nn.Module]]:
    return [(n, m) for n, m in parts.named_modules() if type(m).get_extra_state is not nn.Module.get_extra_state]


def _put_buffer(parts: Parts, mine: dict[str, Any], name: str, tensor: Tensor, persistent: bool) -> None:
    module, key, held = mine.get(name, (None, "", None))
    if held is not None and held.shape == tensor.shape and held.dtype == tensor.dtype:
        held.copy_(tensor)
        return
    owner = (module, key) if module is not None else parts.owner_of(name)
    if owner is None:
        raise CheckpointError(f"the checkpoint is of another model: only the checkpoint has the buffer {name!r}")
    register(owner[0], owner[1], tensor.clone(), persistent)


def send(contents: dict[str, Any], group: Group) -> None:
    """Give *contents* to the other workers of *group*; this one is its first."""
    tensors: list[Tensor] = []
    buffer = io.BytesIO()
    torch.save(_hollow(contents, tensors), buffer)
    plan = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
    group.broadcast(torch.tensor([len(plan)]), 0).wait()
    group.broadcast(plan, 0).wait()
    faults.reach("send state")
    _broadcast([_memory_of(tensor) for tensor in tensors], group)


def receive(group: Group) -> dict[str, Any]:
    """What the first worker of *group* sends, whole: nothing of this worker's is touched yet."""
    size = torch.empty(1, dtype=torch.int64)
    group.broadcast(size, 0).wait()
    plan = torch.empty(int(size), dtype=torch.uint8)
    group.broadcast(plan, 0).wait()
    faults.reach("receive state")
    tensors: list[Tensor] = []
    contents: dict[str, Any] = _filled(torch.load(io.BytesIO(plan.numpy().tobytes()), weights_only=True), tensors)
    _broadcast([_memory_of(tensor) for tensor in tensors], group)
    return contents


def _broadcast(memories: list[Tensor], group: Group) -> None:
    large = [memory for memory in memories if memory.numel() >= SMALL_BYTES]
    small = [memory for memory in memories if 0 < memory.numel() < SMALL_BYTES]
    together = torch.cat(small) if small else torch.empty(0, dtype=torch.uint8)
    for work in [group.broadcast(memory, 0) for memory in [*large, together]]:
        work.wait()
    for memory, arrived in zip(small, together.split([len(memory) for memory in small]), strict=True):
        memory.copy_(arrived)


def _hollow(value: Any, tensors: list[Tensor]) -> Any:
    """*value* with a description in place of each tensor; the tensors themselves are appended to *tensors*."""
    if isinstance(value, Tensor):
        dense = value.detach() if is_dense(value) else value.detach().contiguous()
        tensors.append(dense)
        return (_TENSOR, str(dense.dtype).removeprefix("torch."), list(dense.shape), list(dense.stride()))
    if isinstance(value, dict):
        return {key: _hollow(item, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_hollow(item, tensors) for item in value)
    return value


def _filled(value: Any, tensors: list[Tensor]) -> Any:
    """The inverse of ``_hollow``, with new tensors that hold nothing yet."""
    if isinstance(value, tuple) and value and value[0] == _TENSOR:
        _, dtype, shape, stride = value
        tensors.append(torch.empty_strided(shape, stride, dtype=getattr(torch, dtype)))
        return tensors[-1]
    if isinstance(value, dict):
        return {key: _filled(item, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_filled(item, tensors) for item in value)
    return value


def _memory_of(dense: Tensor) -> Tensor:
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)


def _check_names(kind: str, saved: dict[str, Tensor], mine: dict[str, Any], free: AbstractSet[str]) -> None:
    """Refuse the state of another model. The form of tensors in *free* is the forward's business."""
    if odd := (saved.keys() ^ mine.keys()) - free:
        where = "the model" if min(odd) in mine else "the checkpoint"
        raise CheckpointError(f"the checkpoint is of another model: only {where} has the {kind} {min(odd)!r}")
    for name in saved.keys() & mine.keys() - free:
        tensor = saved[name]
        if tensor.shape != mine[name].shape or tensor.dtype != mine[name].dtype:
            raise CheckpointError(
                f"the checkpoint is of another model: its {kind} {name!r} is {tensor.dtype} {tuple(tensor.shape)}, the "
                f"model's is {mine[name].dtype} {tuple(mine[name].shape)}"
            )
