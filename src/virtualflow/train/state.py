"""What a job consists of: parameters, buffers, optimizer state. How to name and hash it."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def plain_name(name: str) -> str:
    """A parameter's name without what ``torch.compile`` and Fabric put around a model."""
    return name.replace("_orig_mod.", "").replace("_forward_module.", "")


class Parts:
    """The modules whose tensors belong to the job, as they are now: the model, and those that ``state=`` lists.

    A tensor of the model has its plain name, one of another module that of its place: ``state[0].weight``.
    """

    def __init__(self, model: nn.Module, state: Sequence[Any] = ()) -> None:
        self.model = model
        self._roots = {"": model}
        for place, item in enumerate(state):
            if isinstance(item, nn.Module):
                self._roots[f"state[{place}]"] = item

    def modules(self) -> list[nn.Module]:
        return list(dict.fromkeys(module for root in self._roots.values() for module in root.modules()))

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        seen: set[nn.Module] = set()
        for place, root in self._roots.items():
            for name, module in root.named_modules(seen):
                yield joined(place, plain_name(f"{name}.").rstrip(".")), module

    def parameters(self) -> dict[str, nn.Parameter]:
        """All parameters, tied ones once."""
        names: dict[nn.Parameter, str] = {}
        for name, module in self.named_modules():
            for key, parameter in module._parameters.items():
                if parameter is not None:
                    names.setdefault(parameter, joined(name, key))
        return {name: parameter for parameter, name in names.items()}

    def to(self, device: str) -> None:
        """Put all modules on *device*."""
        for root in self._roots.values():
            root.to(device)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))

    def buffers(self) -> list[tuple[str, nn.Module, str, Tensor]]:
        """All buffers, shared ones once, those that are not in a state_dict too: name, module, key there, tensor."""
        buffers: dict[int, tuple[str, nn.Module, str, Tensor]] = {}
        for name, module in self.named_modules():
            for key, tensor in module._buffers.items():
                if tensor is not None:
                    buffers.setdefault(id(tensor), (joined(name, key), module, key, tensor))
        return list(buffers.values())

    def owner_of(self, name: str) -> tuple[nn.Module, str] | None:
        """The module that holds the tensor *name*, or would hold it, and its key there."""
        path, _, key = name.rpartition(".")
        module = next((module for other, module in self.named_modules() if other == path), None)
        return None if module is None else (module, key)


def joined(prefix: str, name: str) -> str:
    """The name of what is *name* in the module *prefix*."""
    return f"{prefix}.{name}" if prefix and name else prefix or name


def named_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The model's parameters, tied ones once."""
    return {plain_name(name): parameter for name, parameter in model.named_parameters()}


Optimizers = tuple[torch.optim.Optimizer, ...]


def digest(parts: Parts, optimizers: Optimizers) -> str:
    """sha256 over the parameters and buffers of all modules, and the optimizers' state."""
    return hashed(contents(parts, optimizers))


def hashed(named: Iterable[tuple[str, Any]]) -> str:
    """sha256 over tensors and plain values, and their names."""
    sha = hashlib.sha256()
    for name, value in named:
        sha.update(f"{name}\0".encode())
        if isinstance(value, Tensor):
            sha.update(f"{value.dtype} {tuple(value.shape)}\0".encode())
            sha.update(bytes_of(value))
        else:
            sha.update(repr(value).encode())
    return sha.hexdigest()


def contents(parts: Parts, optimizers: Optimizers) -> Iterator[tuple[str, Any]]:
    """Everything that is hashed: tensors and plain values, each with its name, in a fixed order."""
    parameters = sorted(parts.parameters().items())
    yield from parameters
    for name, _, _, tensor in sorted(parts.buffers(), key=lambda buffer: buffer[0]):
        yield name, tensor
    for name, parameter in parameters:
        for optimizer in optimizers:
            for key, value in sorted(optimizer.state.get(parameter, {}).items()):
                yield from flattened(value, f"optimizer {key} of {name}")


def flattened(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The tensors and plain values in a nesting of dicts, lists and tuples, each with its name."""
    if isinstance(value, Mapping):
        for key in value:
            yield from flattened(value[key], f"{name} {key}")
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from flattened(item, f"{name} {place}")
    else:
        yield name, value


def described(value: Any) -> str:
    """A tensor's form and hash, or a plain value, in a few words: equal words mean equal bits."""
    if isinstance(value, Tensor):
        hashed = hashlib.blake2b(bytes_of(value), digest_size=6).hexdigest()
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)} {hashed}"
    return repr(value)


def bytes_of(tensor: Tensor) -> memoryview:
    """The tensor's elements in their logical order, as bytes."""
    array: Any = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)


def checksum(tensor: Tensor) -> int:
    """A number that changes when the tensor's bytes do, unless somebody wants it not to."""
    return zlib.crc32(bytes_of(tensor))


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
