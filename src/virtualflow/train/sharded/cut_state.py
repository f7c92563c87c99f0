"""What an optimizer keeps of one parameter, cut into the state of blocks and put together again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from virtualflow.core.blocks import Block

OptimizerState = dict[str, Any]


def flat(tensor: Tensor, like: Tensor) -> Tensor:
    """The elements of *tensor* as a vector, in the order in which the dense tensor *like* has its own in memory."""
    if tensor.stride() != like.stride():
        tensor = torch.empty_strided(like.shape, like.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())


def cut_state(state: OptimizerState, parameter: Tensor, block: Block) -> OptimizerState:
    """The part of *state* that belongs to a *block* of *parameter*: tensors of its shape are cut, others copied."""

    def part(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return copy.deepcopy(value)
        if value.shape != parameter.shape or block.elements == parameter.numel():
            return value.detach().clone()
        return flat(value.detach(), parameter)[block.start : block.stop].clone()

    return {key: _mapped(value, part) for key, value in state.items()}


def assembled(
    parameter: Tensor, pieces: Sequence[tuple[Block, OptimizerState]], empty: Callable[[Tensor, torch.dtype], Tensor]
) -> OptimizerState:
    """The state of a whole *parameter*, from that of its blocks.

    ``empty`` makes the memory: as large as the parameter, with its strides, of a dtype.
    """
    first, state = pieces[0]
    if first.elements == parameter.numel():
        return state

    def whole(values: list[Any]) -> Any:
        value = values[0]
        if isinstance(value, Tensor) and value.shape == (first.elements,):
            target = empty(parameter, value.dtype)
            vector = flat(target, parameter)
            for (block, _), part in zip(pieces, values, strict=True):
                vector[block.start : block.stop] = part
            return target
        if isinstance(value, dict):
            return {key: whole([other[key] for other in values]) for key in value}
        if isinstance(value, list | tuple):
            return type(value)(whole([other[place] for other in values]) for place in range(len(value)))
        return value

    return {key: whole([piece[key] for _, piece in pieces]) for key in state}


def empty_on_host(like: Tensor, dtype: torch.dtype) -> Tensor:
    """Memory for state that is as large as the parameter *like*."""
    return torch.empty_strided(like.shape, like.stride(), dtype=dtype)


def differences(one: Any, other: Any) -> bool:
    """Whether two states differ in a bit, or in form."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return True
        mine, theirs = one.detach().contiguous().reshape(-1), other.detach().contiguous().reshape(-1)
        return not torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() != other.keys() or any(differences(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) != len(other) or any(differences(a, b) for a, b in zip(one, other, strict=True))
    return type(one) is not type(other) or bool(one != other)


def _mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _mapped(item, function) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_mapped(item, function) for item in value)
    return function(value)
