"""May an optimizer update tensors apart from each other, and in blocks? It is asked, with tensors of our own.

A list of names would be shorter, and wrong for the first optimizer that somebody writes.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from virtualflow.core.blocks import Block
from virtualflow.core.seeds import derive
from virtualflow.errors import ConfigError
from virtualflow.train.seeding import generators_kept, reseed
from virtualflow.train.settings import plain_attributes
from virtualflow.train.sharded.cut_state import OptimizerState, assembled, cut_state, differences

Optimizer = torch.optim.Optimizer
STEPS = 3
USUAL_RATE = 1e-3
_ROWS, _COLUMNS, _CUT = 3, 4096, 8192  # blocks begin at multiples of 4096: what kernels do at once is never divided


def choices(group: dict[str, Any]) -> tuple[Any, ...]:
    """What of a parameter group may decide how it is updated: its switches, and which of its numbers are zero."""
    words = {k: v for k, v in group.items() if isinstance(v, bool | str | None)}
    numbers = {k: v != 0 for k, v in group.items() if isinstance(v, int | float) and k not in words and k != "lr"}
    return tuple(sorted((words | numbers).items()))


def check_hooks(optimizer: Optimizer) -> None:
    """Raise ConfigError if the script has hooks around the optimizer's step, which would meet blocks."""
    hooks = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    if any(hooks):
        raise ConfigError(
            f"the optimizer {type(optimizer).__name__} has hooks around its step, which would find some blocks of the "
            "parameters in place of all parameters. Do after trainer.step what they do, or use "
            'sharding="none".'
        )


def may_cut(optimizer: Optimizer, number: int, parameter: Tensor) -> bool:
    """Whether tensors like *parameter*, of the parameter group *number*, may be updated in blocks.

    Raises ConfigError if not even whole tensors may be updated apart from each other.
    """
    name = type(optimizer).__name__
    if type(optimizer).state_dict is not Optimizer.state_dict:
        raise ConfigError(
            f"the optimizer {name} has a state_dict of its own, so that its state can't be spread over devices. Use "
            'sharding="none".'
        )
    one, other = _Tensor(optimizer, number, parameter, (16, 8), 1), _Tensor(optimizer, number, parameter, (8, 24), 2)
    try:
        together, kept = _updated(optimizer, number, [one, other])
        first, kept_by_one = _updated(optimizer, number, [one])
        second, _ = _updated(optimizer, number, [other])
        _, kept_by_none = _updated(optimizer, number, [])
    except Exception as error:
        raise ConfigError(
            f"the optimizer {name} could not be asked whether its state can be spread over devices: a step with two "
            f'matrices, one or none raised {type(error).__name__}: {error}. Use sharding="none".'
        ) from error
    if kept != kept_by_one or kept != kept_by_none:
        raise ConfigError(
            f"the optimizer {name} counts in its groups or attributes how many tensors it has updated, and each device "
            'updates others. Its state can\'t be spread over devices; use sharding="none".'
        )
    if any(differences(a, b) for a, b in zip(together, [*first, *second], strict=True)):
        raise ConfigError(
            f"the optimizer {name} updates a tensor differently when others are updated beside it: it draws noise, or "
            'looks at all gradients at once. Its state can\'t be spread over devices; use sharding="none".'
        )
    whole = _Tensor(optimizer, number, parameter, (_ROWS, _COLUMNS), 3)
    blocks = [Block("", 0, _CUT), Block("", _CUT, _ROWS * _COLUMNS)]
    try:
        [(value, state)], _ = _updated(optimizer, number, [whole])
        parts, _ = _updated(optimizer, number, [whole.part(block) for block in blocks])
        pieces = [(block, part[1]) for block, part in zip(blocks, parts, strict=True)]
        joined = torch.cat([part[0] for part in parts]).view(_ROWS, _COLUMNS)
        put_together = assembled(value, pieces, lambda like, dtype: torch.empty_like(like, dtype=dtype))
        cut_again = [(block, cut_state(state, value, block)) for block in blocks]
        return not differences((value, state, cut_again), (joined, put_together, pieces))
    except Exception:  # it wants matrices, for instance
        return False


class _Tensor:
    """A tensor with gradients for some steps, and with the state that the optimizer made for its own beforehand."""

    def __init__(self, optimizer: Optimizer, number: int, parameter: Tensor, shape: tuple[int, int], seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)

        def drawn() -> Tensor:
            """Numbers of many sizes, some of them zero."""
            sizes = 10.0 ** torch.randint(-6, 2, shape, generator=generator)
            numbers = torch.randn(shape, generator=generator) * sizes
            return (numbers * (torch.rand(shape, generator=generator) > 0.1)).to(parameter)

        self.value = drawn()
        self.gradients = [drawn() for _ in range(STEPS)]
        self.state: OptimizerState = {}
        for made in optimizer.param_groups[number]["params"]:
            if made in optimizer.state:
                self.state = {key: self._like(value, made) for key, value in optimizer.state[made].items()}
                break

    def _like(self, value: Any, made: Tensor) -> Any:
        if not isinstance(value, Tensor) or value.shape != made.shape or not value.numel():
            return copy.deepcopy(value)
        repeated = value.detach().reshape(-1)[:1].expand(self.value.numel())
        return repeated.clone().view(self.value.shape)

    def part(self, block: Block) -> _Tensor:
        """One block of it."""
        part = copy.copy(self)
        part.value = self.value.view(-1)[block.start : block.stop]
        part.gradients = [gradient.view(-1)[block.start : block.stop] for gradient in self.gradients]
        part.state = cut_state(self.state, self.value, block)
        return part


def _updated(
    optimizer: Optimizer, number: int, tensors: Sequence[_Tensor]
) -> tuple[list[tuple[Tensor, OptimizerState]], Any]:
    """What a few steps make of *tensors*, as if they were all that the group *number* has, and of plain values."""
    parameters = [nn.Parameter(tensor.value.clone()) for tensor in tensors]
    with generators_kept(), _borrowed(optimizer):
        reseed(derive(0, "probe"))
        for place, group in enumerate(optimizer.param_groups):
            group["params"] = parameters if place == number else []
            if isinstance(group.get("lr"), int | float) and not group["lr"]:  # the start of a warm-up shows nothing
                group["lr"] = group.get("initial_lr") or USUAL_RATE
        optimizer.state.clear()
        for parameter, tensor in zip(parameters, tensors, strict=True):
            if tensor.state:
                optimizer.state[parameter] = copy.deepcopy(tensor.state)
        for step in range(STEPS):
            for parameter, tensor in zip(parameters, tensors, strict=True):
                parameter.grad = tensor.gradients[step].clone()
            optimizer.step()
        if odd := [key for key in optimizer.state if not any(key is parameter for parameter in parameters)]:
            raise ConfigError(f"it keeps state under {odd[0]!r}, which is no parameter")
        made = [(parameter.detach(), dict(optimizer.state.get(parameter, {}))) for parameter in parameters]
        return made, copy.deepcopy((plain_attributes(optimizer), [_plain(group) for group in optimizer.param_groups]))


def _plain(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if type(value) in (bool, int, float, str)}


@contextmanager
def _borrowed(optimizer: Optimizer) -> Iterator[None]:
    """Leave *optimizer* as it was: its groups, its state, what it counts; its hooks do not hear of this."""
    attributes, plain = dict(vars(optimizer)), copy.deepcopy(plain_attributes(optimizer))
    state = dict(optimizer.state)
    groups = [dict(group) for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        for key, value in group.items():
            if key != "params":
                group[key] = copy.deepcopy(value)
    for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        if hooks in attributes:
            setattr(optimizer, hooks, OrderedDict())
    try:
        yield
    finally:
        vars(optimizer).clear()
        vars(optimizer).update(attributes | plain)
        optimizer.state.clear()
        optimizer.state.update(state)
        for group, before in zip(optimizer.param_groups, groups, strict=True):
            group.clear()
            group.update(before)
