"""The committed state of a job: everything the next step needs, taken out of the live objects and put back in."""

from __future__ import annotations

import io
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from virtualflow.core import faults
from virtualflow.core.membership import Group
from virtualflow.core.wording import counted
from virtualflow.errors import CheckpointError, PeerLostError
from virtualflow.train import checksums, optimizer_state
from virtualflow.train.buffers import Buffers, register
from virtualflow.train.hollow import filled, hollow, memory_of
from virtualflow.train.part_files import BLOCKS, UNITS
from virtualflow.train.position import Position
from virtualflow.train.samples import Samples
from virtualflow.train.settings import Settings
from virtualflow.train.sharded.saved_blocks import SavedBlocks
from virtualflow.train.sharded.shards import Shards
from virtualflow.train.state import Optimizers, Parts, digest
from virtualflow.train.step_metrics import MetricNames
from virtualflow.train.variables import Variables

if TYPE_CHECKING:
    from virtualflow.train.stages.staged_files import StagedFiles
    from virtualflow.train.stages.staged_state import StagedState

SMALL_BYTES = 1 << 20  # tensors below this travel together
MOST_HANDOVERS = 3  # of one piece of state


class HasGrids(Protocol):
    """What sums exactly: where its grids lie is part of the job's state."""

    grids: dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class Live:
    """The objects that hold a job's state."""

    parts: Parts
    optimizers: Optimizers
    reductions: Mapping[str, HasGrids]  # by phase; a Trainer without phases has one, without a name
    buffers: Buffers
    settings: Settings
    state: tuple[Any, ...]
    grad_scaler: torch.amp.GradScaler | None
    samples: Samples
    variables: Variables
    metric_names: MetricNames
    shards: Shards | None = None  # the optimizers' state, if it is spread over devices
    stages: StagedState | None = None  # of a model that is cut: then there is none in *parts*
    files: StagedFiles | None = None  # with stages

    def digest(self, global_step: int) -> str:
        """sha256 over all that the job trains; with stages, a call that all workers make."""
        return digest(self.parts, self.optimizers) if self.stages is None else self.stages.digest(global_step)


def take(live: Live, position: Position) -> dict[str, Any]:
    """The state in *live*, as tensors and plain values."""
    return {
        **take_own(live, position),
        "parameters": {name: parameter.detach() for name, parameter in live.parts.parameters().items()},
        "buffers": {name: tensor for name, _, _, tensor in live.parts.buffers()},
        "form of buffers": live.buffers.form(),
        "extra": {name: module.get_extra_state() for name, module in _with_extra_state(live.parts)},
        "optimizers": [optimizer.state_dict() for optimizer in live.optimizers],
        "settings": live.settings.take(),
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
    _check_names("buffer", saved["buffers"], {name: entry[2] for name, entry in buffers.items()}, free)
    if len(saved["settings"]["state"]) != len(live.state):
        raise CheckpointError(
            f"the checkpoint holds {len(saved['settings']['state'])} objects of state=[...], this Trainer has "
            f"{len(live.state)}"
        )
    if (saved["grad_scaler"] is None) != (live.grad_scaler is None):
        raise CheckpointError("either the checkpoint or this Trainer has a grad_scaler, and the other has none")
    if len(saved["optimizers"]) != len(live.optimizers):
        raise CheckpointError(
            f"the checkpoint holds {counted(len(saved['optimizers']), 'optimizer')}, this Trainer has "
            f"{len(live.optimizers)}"
        )
    blocks = SavedBlocks(saved[BLOCKS]) if BLOCKS in saved else None
    for place, optimizer in enumerate(live.optimizers):
        groups, state = saved["settings"]["groups"][place], saved["optimizers"][place]
        optimizer_state.regroup(optimizer, parameters, groups)
        whole = state if blocks is None or live.shards is not None else blocks.state_dict(state, groups, parameters)
        optimizer_state.put(optimizer, whole)
    if live.shards is not None:
        live.shards.put(saved.get("blocks"), blocks)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(saved["parameters"][name])
        for name, tensor in saved["buffers"].items():
            _put_buffer(live.parts, buffers, name, tensor, form["own form"].get(name, True))
    for name, module in _with_extra_state(live.parts):
        module.set_extra_state(saved["extra"][name])
    live.settings.put(saved["settings"])
    live.buffers.set_form(form)
    if live.grad_scaler is not None:
        live.grad_scaler.load_state_dict(saved["grad_scaler"])
    put_own(live, saved)
    if live.files is not None and UNITS in saved:
        live.files.read(saved[UNITS])
    return Position(**saved["position"])


def take_own(live: Live, position: Position) -> dict[str, Any]:
    """What no model or optimizer holds, of what ``take`` returns."""
    grids = {phase: reduction.grids for phase, reduction in live.reductions.items()}
    return {"position": asdict(position), "grids": grids, "metrics": live.metric_names.take()}


def put_own(live: Live, saved: dict[str, Any]) -> None:
    """Set what no model or optimizer holds: where the grids lie, and the names of metrics."""
    for phase, reduction in live.reductions.items():
        reduction.grids = saved["grids"].get(phase, {})
    live.metric_names.put(saved["metrics"])


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
    where = tensor.device if held is None else held.device  # a job on devices of several types has it elsewhere
    register(owner[0], owner[1], tensor.to(where, copy=True), persistent)


def send(contents: dict[str, Any], group: Group) -> int:
    """Give *contents* to the other workers of *group*; this one is its first.

    Return how often a part had to be sent again, since it had not arrived as it was.
    """
    tensors: list[Tensor] = []
    buffer = io.BytesIO()
    torch.save(hollow(contents, tensors), buffer)
    plan = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
    group.broadcast(torch.tensor([len(plan)]), 0).wait()
    again = _hand_over([plan], group)
    faults.reach("send state")
    return again + _hand_over([memory_of(tensor) for tensor in tensors], group)


def receive(group: Group, device: torch.device) -> dict[str, Any]:
    """What the first worker of *group* sends, whole: nothing of this worker's is touched yet.

    What lies on the sender's accelerator comes to *device*.
    """
    size = torch.empty(1, dtype=torch.int64)
    group.broadcast(size, 0).wait()
    plan = torch.empty(int(size), dtype=torch.uint8)
    _hand_over([plan], group)
    faults.reach("receive state")
    tensors: list[Tensor] = []
    plain = torch.load(io.BytesIO(plan.numpy().tobytes()), weights_only=True)
    contents: dict[str, Any] = filled(plain, tensors, device)
    _hand_over([memory_of(tensor) for tensor in tensors], group)
    return contents


def _hand_over(memories: list[Tensor], group: Group) -> int:
    """Broadcast *memories* until they have arrived as they were sent; return how often they had not.

    Raises PeerLostError if that does not come to pass: a worker that joins ends then, and another one can be started.
    """
    for again in range(MOST_HANDOVERS):
        _broadcast(memories, group)
        if group.rank:
            faults.expose("state transfers", memories)
        mine = checksums.of_named((str(place), memory) for place, memory in enumerate(memories))
        sent = torch.tensor([mine])
        group.broadcast(sent, 0).wait()
        damaged = torch.tensor([int(int(sent) != mine)])
        group.max(damaged).wait()
        if not int(damaged):
            return again
    raise PeerLostError(f"the job's state arrived damaged {MOST_HANDOVERS} times")


def _broadcast(memories: list[Tensor], group: Group) -> None:
    """Large tensors go as they are; small ones together, by way of the hosts."""
    works = [group.broadcast(memory, 0) for memory in memories if memory.numel() >= SMALL_BYTES]
    if small := [memory for memory in memories if 0 < memory.numel() < SMALL_BYTES]:
        together = torch.cat([memory.cpu() for memory in small])
        group.broadcast(together, 0).wait()
        for memory, arrived in zip(small, together.split([len(memory) for memory in small]), strict=True):
            memory.copy_(arrived)
    for work in works:
        work.wait()
    group.settle()
    if group.reaches_devices:  # nobody leaves, and frees what others may still read, before all have everything
        group.max(torch.zeros(1)).wait()


def _check_names(role: str, saved: dict[str, Tensor], mine: dict[str, Any], free: AbstractSet[str]) -> None:
    """Refuse the state of another model. The form of tensors in *free* is the forward's business."""
    if odd := (saved.keys() ^ mine.keys()) - free:
        where = "the model" if min(odd) in mine else "the checkpoint"
        raise CheckpointError(f"the checkpoint is of another model: only {where} has the {role} {min(odd)!r}")
    for name in saved.keys() & mine.keys() - free:
        tensor = saved[name]
        if tensor.shape != mine[name].shape or tensor.dtype != mine[name].dtype:
            raise CheckpointError(
                f"the checkpoint is of another model: its {role} {name!r} is {tensor.dtype} {tuple(tensor.shape)}, the "
                f"model's is {mine[name].dtype} {tuple(mine[name].shape)}"
            )
