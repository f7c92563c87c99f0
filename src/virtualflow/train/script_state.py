"""What ``state=[...]`` may hold besides schedules: a script's own variables, and how each kind is saved and set back.

An item that has ``state_dict`` and ``load_state_dict`` is asked for them. Dicts, lists, dataclasses and generators are
set in place, so that every name the script has for them sees the change. What can't be set in place, such as a number,
is compared.
"""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from virtualflow.errors import CheckpointError, ConfigError
from virtualflow.train import optimizer_state

_ARRAY = "a numpy array"
CONSTANTS = (int, float, str, bytes, type(None))


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
    if not _is_known(item):
        raise ConfigError(
            f"state= holds a {type(item).__name__}, which has no state_dict and load_state_dict: the job can't save "
            "it or send "
            "it to another device. Give it both methods; or keep the variables in a vf.State(), a dict, a list or a "
            "dataclass."
        )


def _is_known(item: Any) -> bool:
    if _has_state_dict(item) or isinstance(item, (State, dict, list, tuple, *CONSTANTS)):
        return True
    return _is_dataclass(item) or isinstance(
        item, torch.Generator | np.random.Generator | np.random.RandomState | random.Random
    )


def take(item: Any) -> Any:
    """The contents of *item*, as plain values and tensors."""
    if _has_state_dict(item):
        return item.state_dict()
    if isinstance(item, State):
        return _plain(vars(item))
    if isinstance(item, torch.Generator):
        return item.get_state()
    if isinstance(item, np.random.Generator):
        return _plain(item.bit_generator.state)
    if isinstance(item, np.random.RandomState):
        return _plain(item.get_state(legacy=False))
    if isinstance(item, random.Random):
        return item.getstate()
    return _plain(_fields(item) if _is_dataclass(item) else item)


def put(item: Any, contents: Any, where: str) -> None:
    """Set *item*, which is *where* in the job, to *contents* that ``take`` returned."""
    if isinstance(item, torch.optim.Optimizer):
        optimizer_state.put(item, copy.deepcopy(contents))
    elif _has_state_dict(item):
        item.load_state_dict(copy.deepcopy(contents))  # schedules keep what they are given
    elif isinstance(item, State):
        _set_dict(vars(item), contents)
    elif isinstance(item, torch.Generator):
        item.set_state(contents)
    elif isinstance(item, np.random.Generator):
        item.bit_generator.state = _live(contents)
    elif isinstance(item, np.random.RandomState):
        item.set_state(_live(contents))
    elif isinstance(item, random.Random):
        item.setstate(contents)
    elif _is_dataclass(item):
        for name, value in contents.items():
            object.__setattr__(item, name, _assigned(getattr(item, name, None), value))
    elif _assigned(item, contents) is not item and take(item) != contents:
        raise CheckpointError(
            f"{where} is {take(item)!r} here and {contents!r} in the job: a {type(item).__name__} can't be set from "
            "outside. Keep "
            "what changes in a vf.State(...), and make what does not change equal."
        )


def _has_state_dict(item: Any) -> bool:
    return not isinstance(item, State) and hasattr(item, "state_dict") and hasattr(item, "load_state_dict")


def _is_dataclass(item: Any) -> bool:
    return dataclasses.is_dataclass(item) and not isinstance(item, type)


def _fields(item: Any) -> dict[str, Any]:
    return {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}


def _plain(value: Any) -> Any:
    """*value* with arrays as tensors and numpy's numbers as Python's."""
    if isinstance(value, np.ndarray):
        return (_ARRAY, torch.from_numpy(np.ascontiguousarray(value)))
    if isinstance(value, np.generic):
        return value.item()
    if _is_dataclass(value):
        return _plain(_fields(value))
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(_plain(item) for item in value)
    return value


def _live(value: Any) -> Any:
    """The inverse of ``_plain``, as far as it goes."""
    if isinstance(value, torch.Tensor):
        return value.clone()  # what was taken may be put in more than once
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and value[0] == _ARRAY:
        return value[1].numpy().copy()
    if isinstance(value, dict):
        return {key: _live(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_live(item) for item in value)
    return value


def _assigned(held: Any, value: Any) -> Any:
    """*value*, in the place of *held*: the same object with other contents, where it can be."""
    if isinstance(held, dict) and isinstance(value, dict):
        _set_dict(held, value)
        return held
    if isinstance(held, list) and isinstance(value, list):
        kept = [*held, *[None] * len(value)]
        held[:] = [_assigned(kept[place], item) for place, item in enumerate(value)]
        return held
    if isinstance(held, torch.Tensor) and isinstance(value, torch.Tensor):
        if held.shape == value.shape and held.dtype == value.dtype:
            with torch.no_grad():
                held.copy_(value)
            return held
        return value.to(held.device, copy=True)
    if _is_dataclass(held) and isinstance(value, dict):
        put(held, value, "")
        return held
    return _live(value)


def _set_dict(held: dict[str, Any], contents: dict[str, Any]) -> None:
    assigned = {key: _assigned(held.get(key), value) for key, value in contents.items()}
    held.clear()  # so that the order of the keys is the job's too
    held.update(assigned)
