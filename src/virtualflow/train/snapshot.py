"""The committed state of a job: everything the next step needs, taken out of the live objects and put back in."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from virtualflow.core import faults
from virtualflow.core.membership import Group
from virtualflow.errors import CheckpointError
from virtualflow.train.accumulate import is_dense
from virtualflow.train.reduction import ExactReduction, Reduction
from virtualflow.train.state import named_buffers, named_parameters, plain_name
from virtualflow.train.sums import Sums

SMALL_BYTES = 1 << 20  # tensors below this travel together
_TENSOR = "a tensor of the state"


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
        "groups": _groups(live.optimizer, parameters),
        "grids": {kind: sums.grids_by_name() for kind, sums in _sums(live.reduction)},
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
    _regroup(live.optimizer, parameters, saved.get("groups", []))
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
        sums.set_grids(saved["grids"].get(kind, {}))
    return Position(**saved["position"])


def _groups(optimizer: torch.optim.Optimizer, parameters: dict[str, nn.Parameter]) -> list[list[str]]:
    """The names in each parameter group."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    return [[names.get(id(parameter), "") for parameter in group["params"]] for group in optimizer.param_groups]


def _regroup(optimizer: torch.optim.Optimizer, parameters: dict[str, nn.Parameter], groups: list[list[str]]) -> None:
    """A script may add parameter groups as it goes, and this worker has not come by there."""
    if len(groups) > len(optimizer.param_groups):
        optimizer.param_groups = [{"params": [parameters[name] for name in names]} for names in groups]


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
