"""Values with descriptions in place of their tensors: plain enough to be sent ahead, and filled at the other end."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from virtualflow.train.accumulate import is_dense

_TENSOR = "a tensor of the state"


def hollow(value: Any, tensors: list[Tensor]) -> Any:
    """*value* with a description in place of each tensor; the tensors themselves are appended to *tensors*."""
    if isinstance(value, Tensor):
        dense = value.detach() if is_dense(value) else value.detach().contiguous()
        tensors.append(dense)
        on_host = dense.device.type == "cpu"
        return (_TENSOR, str(dense.dtype).removeprefix("torch."), list(dense.shape), list(dense.stride()), on_host)
    if isinstance(value, dict):
        return {key: hollow(item, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(hollow(item, tensors) for item in value)
    return value


def filled(value: Any, tensors: list[Tensor], device: torch.device) -> Any:
    """The inverse of ``hollow``, with new tensors that hold nothing yet."""
    if isinstance(value, tuple) and value and value[0] == _TENSOR:
        _, dtype, shape, stride, on_host = value
        where = torch.device("cpu") if on_host else device
        tensors.append(torch.empty_strided(shape, stride, dtype=getattr(torch, dtype), device=where))
        return tensors[-1]
    if isinstance(value, dict):
        return {key: filled(item, tensors, device) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(filled(item, tensors, device) for item in value)
    return value


def memory_of(dense: Tensor) -> Tensor:
    """The bytes of a tensor that fills its memory without gaps."""
    return dense.detach().as_strided((dense.numel(),), (1,)).view(torch.uint8)
