"""What the virtual nodes of one step compute, noted for somebody who doubts it, or compares it with another run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from virtualflow.core.sharding import GlobalBatch
from virtualflow.train.loss import NodeLoss
from virtualflow.train.reduction import Reduction
from virtualflow.train.state import bytes_of, described, flattened, tensors_in

FOLDER, STATE = "nodes", "state.json"  # in that of the job, and in there


@dataclass(slots=True)
class NodeNote:
    """One virtual node: what it was given and what came of it, each tensor by its form and digest.

    ``modules`` has the outputs of all modules in the order in which they were computed, and the gradients of those, as
    ("forward" or "backward", module, digest).
    """

    node: int
    device: str
    indices: list[int]
    inputs: dict[str, str]
    loss: float = 0.0
    loss_bits: str = ""
    weight: float = 0.0
    modules: list[tuple[str, str, str]] = field(default_factory=list)
    gradients: dict[str, str] = field(default_factory=dict)


class NodeNotes:
    """Notes what virtual nodes compute in *step*, with *with_tensors* the tensors themselves, below *folder*."""

    def __init__(self, step: int, folder: Path, *, with_tensors: bool) -> None:
        self._step = step
        self._folder = folder / FOLDER
        self._with_tensors = with_tensors
        self._notes: dict[int, NodeNote] = {}
        self._tensors: dict[int, dict[str, Any]] = {}
        self._state: dict[str, str] = {}  # the model as the step found it

    @contextmanager
    def watching(
        self, step: int, node: int, device: str, batch: GlobalBatch, model: nn.Module, reduction: Reduction
    ) -> Iterator[Noting | None]:
        """A virtual node runs: in the step that counts, note what it does. The last attempt's notes stay."""
        if step != self._step:
            yield None
            return
        if not self._state:
            self._state = {name: described(value) for name, value in sorted(model.state_dict(keep_vars=True).items())}
        note = NodeNote(node, device, list(map(int, batch.shards[node])), {})
        tensors: dict[str, Any] = {"gradients": {}}
        self._notes[node], self._tensors[node] = note, tensors
        noting = Noting(note, tensors if self._with_tensors else None)
        before, reduction.witness = reduction.witness, noting.saw_gradient
        hooks = [
            module.register_forward_hook(partial(noting.saw_output, name)) for name, module in model.named_modules()
        ]
        try:
            yield noting
        finally:
            reduction.witness = before
            for hook in hooks:
                hook.remove()

    def write(self) -> None:
        """Leave the notes in the job's folder: a file of each virtual node that ran here."""
        self._folder.mkdir(exist_ok=True)
        (self._folder / STATE).write_text(json.dumps(self._state))
        for node, note in self._notes.items():
            if self._with_tensors:
                torch.save(self._tensors[node], self._folder / f"node-{node:05d}.pt")
            (self._folder / f"node-{node:05d}.json").write_text(json.dumps(asdict(note)))


class Noting:
    """Notes one virtual node while it runs; keeps *tensors* if there is room for them."""

    def __init__(self, note: NodeNote, tensors: dict[str, Any] | None) -> None:
        self._note = note
        self._tensors = tensors

    def loaded(self, batch: Any) -> None:
        """Before the forward, which may write to its batch."""
        self._note.inputs = {name.strip() or "batch": described(value) for name, value in flattened(batch, "")}
        if self._tensors is not None:
            self._tensors["inputs"] = _kept(batch)

    def computed(self, loss: NodeLoss) -> None:
        total, weight = float(loss.total.detach()), float(loss.weight)
        self._note.loss, self._note.loss_bits, self._note.weight = total, total.hex(), weight
        if self._tensors is not None:
            self._tensors |= {"loss": loss.total.detach().cpu().clone(), "weight": weight}

    def saw_gradient(self, name: str, value: Tensor) -> None:
        self._note.gradients[name] = _digest(value)
        if self._tensors is not None:
            self._tensors["gradients"][name] = value.detach().cpu().clone()

    def saw_output(self, name: str, module: nn.Module, _: Any, output: Any) -> None:
        place = f"{name or 'the model'} ({type(module).__name__})"
        for tensor in tensors_in(output):
            self._note.modules.append(("forward", place, _digest(tensor)))
            if tensor.requires_grad:
                tensor.register_hook(self._backward_hook(place))

    def _backward_hook(self, place: str) -> Callable[[Tensor], None]:
        def saw(gradient: Tensor) -> None:
            self._note.modules.append(("backward", place, _digest(gradient)))

        return saw


def _digest(value: Tensor) -> str:
    dense = value.detach().to_dense() if value.layout != torch.strided else value
    return hashlib.blake2b(bytes_of(dense), digest_size=16).hexdigest()


def _kept(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, Mapping):
        return {key: _kept(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_kept(item) for item in value]
    return value
