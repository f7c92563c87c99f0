"""What a job consists of: parameters, buffers, optimizer state. How to name, hash and reset it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


def plain_name(name: str) -> str:
    """A parameter's name without what ``torch.compile`` puts around it."""
    return name.replace("_orig_mod.", "")


def named_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The model's parameters, tied ones once."""
    return {plain_name(name): parameter for name, parameter in model.named_parameters()}


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer, and the module that holds it: a forward may write it, or put another tensor in its place."""

    name: str
    module: nn.Module
    key: str
    tensor: Tensor

    def current(self) -> Tensor:
        held = self.module._buffers[self.key]
        return self.tensor if held is None else held

    def put_back(self) -> None:
        """Copy a tensor that took this one's place into it."""
        if (current := self.current()) is not self.tensor:
            self.tensor.copy_(current)
            self.module._buffers[self.key] = self.tensor


def named_buffers(model: nn.Module) -> list[Buffer]:
    """The model's buffers, shared ones once, those that are not in its state_dict too."""
    found: dict[int, Buffer] = {}
    for prefix, module in model.named_modules():
        for key, tensor in module._buffers.items():
            if tensor is not None:
                name = plain_name(f"{prefix}.{key}" if prefix else key)
                found.setdefault(id(tensor), Buffer(name, module, key, tensor))
    return list(found.values())


class Buffers:
    """The model's buffers as the step sees them: every virtual node starts from the same values."""

    def __init__(self, model: nn.Module) -> None:
        self.all = named_buffers(model)
        self._start = [buffer.tensor.clone() for buffer in self.all]
        self.changed: list[int] = []  # by the virtual node that ran last

    def hold(self) -> None:
        """Take the buffers' values as those that the step starts from."""
        self.compare()
        for index in self.changed:
            self.all[index].put_back()
            self._start[index].copy_(self.all[index].tensor)
        self.changed = []

    def compare(self) -> None:
        """Find out which buffers differ from their values at the step's start."""
        # By value: batch norm writes its statistics without raising their version.
        self.changed = [
            index
            for index, (buffer, start) in enumerate(zip(self.all, self._start, strict=True))
            if not torch.equal(buffer.current(), start)
        ]

    def restore(self) -> None:
        """Set every changed buffer to its value at the step's start."""
        for index in self.changed:
            buffer = self.all[index]
            buffer.module._buffers[buffer.key] = buffer.tensor
            buffer.tensor.copy_(self._start[index])
        self.changed = []

    def differences(self, weight: int) -> list[Tensor]:
        """How far each changed buffer is from its value at the step's start, times *weight*; exact for integers."""
        if not self.changed:
            return []
        # In two calls for all of them: a batch norm layer has three, and they are small.
        currents = [_as_real(self.all[index].current().detach()) for index in self.changed]
        differences = torch._foreach_sub(currents, [_as_real(self._start[index]) for index in self.changed])
        torch._foreach_mul_(differences, weight)
        return list(differences)

    def advance(self, index: int, difference: Tensor) -> None:
        """Move a buffer to its start plus *difference*."""
        start, tensor = self._start[index], self.all[index].tensor
        tensor.copy_(start + difference.to(start.dtype) if start.dtype != torch.bool else start ^ (difference != 0))

    def integers(self) -> int:
        """63 bits that stand for the values of all changed integer buffers: virtual nodes must agree on them."""
        digest = hashlib.blake2b(digest_size=8)
        for index in self.changed:
            if not self.all[index].tensor.is_floating_point():
                digest.update(bytes_of(self.all[index].current()))
        return int.from_bytes(digest.digest(), "little") >> 1


def _as_real(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_floating_point() else tensor.double()


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """sha256 over the model's parameters and buffers and the optimizer's state."""
    sha = hashlib.sha256()
    for name, value in _contents(model, optimizer):
        sha.update(f"{name}\0".encode())
        if isinstance(value, Tensor):
            sha.update(f"{value.dtype} {tuple(value.shape)}\0".encode())
            sha.update(bytes_of(value))
        else:
            sha.update(repr(value).encode())
    return sha.hexdigest()


def _contents(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Any]]:
    parameters = named_parameters(model)
    for name, parameter in sorted(parameters.items()):
        yield name, parameter
    for buffer in sorted(named_buffers(model), key=lambda buffer: buffer.name):
        yield buffer.name, buffer.current()
    for name, parameter in sorted(parameters.items()):
        for key, value in sorted(optimizer.state.get(parameter, {}).items()):
            yield f"optimizer {key} of {name}", value


def bytes_of(tensor: Tensor) -> memoryview:
    """The tensor's elements in their logical order, as bytes."""
    array: Any = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in a nesting of dicts, lists and tuples, in a fixed order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for key in value:
            yield from tensors_in(value[key])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
