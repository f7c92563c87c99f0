"""What objects of the script keep in their attributes, as part of the job: callbacks of loops that others have written.

Numbers, strings, tensors, arrays and containers of them are kept by value; modules, schedules and others that have a
``state_dict`` by it; objects of the script's own classes by their attributes, in turn. What belongs to the job anyway
is left alone: the model, its tensors, the loop itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from virtualflow.errors import CheckpointError, ConfigError
from virtualflow.train import script_state
from virtualflow.train.plain import address, assigned, encoded
from virtualflow.train.replay import digest_of
from virtualflow.train.variables import is_library, is_time

_DEPTH = 3
_CONTAINERS = (list, tuple, dict)


class KeptAttributes:
    """Takes attributes of the script's objects, and puts them back. *model* and *others* belong to the job anyway."""

    def __init__(self, model: nn.Module, others: Iterable[Any] = ()) -> None:
        self._others = list(others)  # so that nothing else gets their ids
        self._own = {id(item) for item in (*self._others, *model.modules())}
        self._tensors = {address(tensor) for tensor in (*model.parameters(), *model.buffers())}

    def take(self, owner: Any, *, private: bool = True) -> dict[str, Any]:
        """The attributes of *owner*, as tensors and plain values; not its *private* ones, if so said."""
        return self._taken(owner, private, {id(owner)}, 0)

    def without_data(self, owner: Any, data: dict[str, str]) -> dict[str, Any]:
        """The public attributes of *owner*, but for tensors that are as they were when ``data_of`` gave *data*."""
        taken = self.take(owner, private=False)
        now = self.data_of(owner)
        values = {
            name: value for name, value in taken["values"].items() if name not in now or data.get(name) != now[name]
        }
        return taken | {"values": values}

    def data_of(self, owner: Any) -> dict[str, str]:
        """A digest of each attribute of *owner* that is made of tensors: most of them will never change."""
        values = {name: vars(owner)[name] for name in self.take(owner, private=False)["values"]}
        return {name: digest_of([value]) for name, value in values.items() if next(_in(value), None) is not None}

    def put(self, owner: Any, saved: dict[str, Any], where: str) -> None:
        """Set what ``take`` returned on *owner*, which is called *where* in errors."""
        held = vars(owner)
        for name, contents in saved["values"].items():
            setattr(owner, name, assigned(held.get(name), contents, set(self._tensors)))
        for name, objects in saved["objects"].items():
            here = dict(_objects(held.get(name)))
            if here.keys() != objects.keys():
                raise _missing(where, name)
            for place, contents in objects.items():
                script_state.put(here[place], contents, f"{where}.{name}", set(self._tensors))
        for name, contents in saved["owners"].items():
            if not hasattr(held.get(name), "__dict__"):
                raise _missing(where, name)
            self.put(held[name], contents, f"{where}.{name}")

    def _taken(self, owner: Any, private: bool, seen: set[int], depth: int) -> dict[str, Any]:
        taken: dict[str, Any] = {"values": {}, "objects": {}, "owners": {}}
        for name, value in vars(owner).items():
            if name.startswith("_") and not private:
                continue
            if (
                id(value) in self._own
                or is_time(value)
                or any(address(tensor) in self._tensors for tensor in _in(value))
            ):
                continue
            if objects := {place: item for place, item in _objects(value) if id(item) not in self._own}:
                taken["objects"][name] = {place: script_state.take(item) for place, item in objects.items()}
            elif (contents := _encoded(value)) is not None:
                taken["values"][name] = contents[0]
            elif _is_of_the_script(value) and id(value) not in seen and depth < _DEPTH:
                taken["owners"][name] = self._taken(value, private, seen | {id(value)}, depth + 1)
        return taken


def _missing(where: str, name: str) -> CheckpointError:
    return CheckpointError(
        f"the job keeps {where}.{name}, and here there is no such object to put it into: a worker that joins, or a job "
        "that resumes, runs the script from the top. Make it in __init__, or in the hook that begins the training."
    )


def _objects(value: Any) -> Iterator[tuple[Any, Any]]:
    """What has a state of its own to ask for: *value* itself, or items of it, by their place."""
    if script_state.has_state(value):
        yield "", value
    elif isinstance(value, _CONTAINERS):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        yield from ((place, item) for place, item in items if script_state.has_state(item))


def _in(value: Any) -> Iterator[Tensor]:
    """The tensors that *value* is made of."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, _CONTAINERS):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _in(item)


def _encoded(value: Any) -> tuple[Any] | None:
    """*value* by itself; None for a file, a function, a bar: nothing that a job could keep."""
    try:
        return (encoded(value, ""),)
    except ConfigError:
        return None


def _is_of_the_script(value: Any) -> bool:
    """Whether *value* is an object of a class that the script has made, and no data."""
    value_type = type(value)
    if not hasattr(value, "__dict__") or isinstance(value, type | torch.utils.data.Dataset) or callable(value):
        return False
    return not is_library(sys.modules.get(value_type.__module__))
