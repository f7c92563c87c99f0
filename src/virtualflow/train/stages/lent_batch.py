"""A batch that several stages read: on one device they share it, on others it is loaded anew."""

from __future__ import annotations

import copy
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from virtualflow.errors import HiddenStateError


@contextmanager
def lent(batch: Any, reader: str) -> Iterator[Any]:
    """*batch* for *reader*: what it puts into dicts and lists, no other reader sees. It may not write to tensors."""
    tensors: list[Tensor] = []
    own = _with_own_containers(batch, tensors)
    versions = [tensor._version for tensor in tensors]
    yield own
    if written := [t for t, version in zip(tensors, versions, strict=True) if t._version != version]:
        raise HiddenStateError(
            f"{reader} wrote to a tensor of its batch, of shape {tuple(written[0].shape)}: another stage that reads it "
            "sees that on the same device only. Write to a copy: x = x.clone()."
        )


def _with_own_containers(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, Tensor):
        if not value.is_inference():  # those count no writes
            tensors.append(value)
        return value
    if isinstance(value, MutableMapping):
        own = copy.copy(value)
        for key, item in value.items():
            own[key] = _with_own_containers(item, tensors)
        return own
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_with_own_containers(item, tensors) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(_with_own_containers(item, tensors) for item in value)
    return value
