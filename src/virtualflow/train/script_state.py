"""What ``state=[...]`` may hold besides schedules: a script's own variables, and how each kind is saved and set back.

An item that has ``state_dict`` and ``load_state_dict`` is asked for them. Dicts, lists, dataclasses and generators are
set in place, so that every name the script has for them sees the change. What can't be set in place, such as a number,
is compared.
"""

from __future__ import annotations

import collections
import copy
import random
from typing import Any

import numpy as np
import torch

from virtualflow.errors import CheckpointError, ConfigError
from virtualflow.train import optimizer_state
from virtualflow.train.plain import assigned, decoded, encoded, is_dataclass, set_items

_CONSTANTS = (int, float, str, bytes, tuple, type(None))
_CONTAINERS = (dict, list, set, collections.deque, np.ndarray, torch.Tensor)
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


class State:
    """The script's own variables that the job must keep: ``progress = vf.State(best=0.0, bad_epochs=0)``.

    Listed in ``state=[progress]``, its attributes are saved, resumed, and given to workers that join. They hold
    numbers, strings, tensors, arrays, and dicts, lists and tuples of them.
    """

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    def __repr__(self) -> str:
        return f"State({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def __getattr__(self, name: str) -> Any:
        known = ", ".join(vars(self)) or "none"
        raise AttributeError(f"this vf.State has no {name!r}; it has: {known}. Set it before it is read.")


def check(item: Any) -> None:
    """Refuse an item of ``state=`` that nobody could save or set back."""
    if not is_known(item):
        raise ConfigError(
            f"state= holds a {type(item).__name__}, which has no state_dict and load_state_dict: the job can't save "
            "it or send "
            "it to another device. Give it both methods; or keep the variables in a vf.State(), a dict, a list or a "
            "dataclass."
        )


def is_known(item: Any) -> bool:
    if _has_state_dict(item) or isinstance(item, (State, *_CONTAINERS, *_CONSTANTS, *_GENERATORS)):
        return True
    return is_dataclass(item)


def take(item: Any, where: str = "state") -> Any:
    """The contents of *item*, as plain values and tensors."""
    if _has_state_dict(item):
        return item.state_dict()
    if isinstance(item, State):
        return {name: encoded(value, f"{where}.{name}") for name, value in vars(item).items()}
    if isinstance(item, torch.Generator):
        return item.get_state()
    if isinstance(item, np.random.Generator):
        return encoded(item.bit_generator.state, where)
    if isinstance(item, np.random.RandomState):
        return encoded(item.get_state(legacy=False), where)
    return item.getstate() if isinstance(item, random.Random) else encoded(item, where)


def put(item: Any, contents: Any, where: str, claimed: set[int]) -> None:
    """Set *item*, which is *where* in the job, to *contents* that ``take`` returned, but nothing that is *claimed*."""
    if isinstance(item, torch.optim.Optimizer):
        optimizer_state.put(item, copy.deepcopy(contents))
    elif _has_state_dict(item):
        item.load_state_dict(copy.deepcopy(contents))  # schedules keep what they are given
    elif isinstance(item, State):
        set_items(vars(item), contents, claimed)
    elif isinstance(item, torch.Generator):
        item.set_state(contents)
    elif isinstance(item, np.random.Generator):
        item.bit_generator.state = decoded(contents)
    elif isinstance(item, np.random.RandomState):
        item.set_state(decoded(contents))
    elif isinstance(item, random.Random):
        item.setstate(contents)
    elif assigned(item, contents, claimed) is not item and take(item) != contents:
        raise CheckpointError(
            f"{where} is {take(item)!r} here and {contents!r} in the job: a {type(item).__name__} can't be set from "
            "outside. Keep what changes in a vf.State(...), and make what does not change equal."
        )


def has_state(item: Any) -> bool:
    """Whether *item* has more to it than its value: a module, a schedule, a generator."""
    return isinstance(item, (State, *_GENERATORS)) or (not isinstance(item, type) and _has_state_dict(item))


def _has_state_dict(item: Any) -> bool:
    return not isinstance(item, State) and hasattr(item, "state_dict") and hasattr(item, "load_state_dict")
