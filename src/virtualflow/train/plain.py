"""A script's values as tensors and plain values that can be saved without code, and back, with their types.

Setting back happens in place where it can, so that every name that the script has for a list, an array or a tensor
stays good. What stands in two places is not written through either of them.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from virtualflow.errors import ConfigError

_TAG = "of type"
_AS_IS = (bool, int, float, complex, str, bytes, type(None), torch.Size, torch.dtype, torch.device)
_BUILT_IN: dict[str, Any] = {
    built_in.__name__: built_in for built_in in (int, float, str, bool, list, dict, set, tuple)
}


def encoded(value: Any, where: str) -> Any:
    """*value*, which the script has in *where*, as tensors, plain values, dicts, lists and tuples."""
    if isinstance(value, Tensor) or type(value) in _AS_IS:
        return value.detach() if isinstance(value, Tensor) else value
    if isinstance(value, enum.Enum):
        return (_TAG, "enum", _name_of(type(value)), value.name)
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        encoding = "array" if isinstance(value, np.ndarray) else "number"
        return (_TAG, encoding, "", torch.from_numpy(np.array(value)))
    if is_dataclass(value):
        return (_TAG, "dataclass", _name_of(type(value)), encoded(fields_of(value), where))
    if isinstance(value, dict):
        return _encoded_dict(value, where)
    if isinstance(value, list | tuple | set | frozenset | collections.deque):
        return _encoded_items(value, where)
    if isinstance(value, float):  # as trainer.step returns it, with metrics
        return float(value)
    raise ConfigError(
        f"{where} is a {type(value).__name__}, which can't be saved or sent to another device. The job keeps tensors, "
        "numbers, strings, arrays, enums, dataclasses, and dicts, lists, tuples, sets and deques of them."
    )


def _encoded_dict(value: dict[Any, Any], where: str) -> Any:
    items = {key: encoded(item, f"{where}[{key!r}]") for key, item in value.items()}
    if type(value) is dict:
        return items
    if isinstance(value, collections.defaultdict):
        factory = getattr(value.default_factory, "__name__", "")
        if value.default_factory is not None and _BUILT_IN.get(factory) is not value.default_factory:
            raise ConfigError(
                f"{where} is a defaultdict of {factory or 'a function'}, which can't be saved: use a plain dict"
            )
        return (_TAG, "defaultdict", factory, items)
    encoding = {collections.Counter: "Counter", collections.OrderedDict: "OrderedDict"}.get(type(value))
    return items if encoding is None else (_TAG, encoding, "", items)


def _encoded_items(value: Any, where: str) -> Any:
    items = [encoded(item, f"{where}[{place}]") for place, item in enumerate(value)]
    if type(value) in (list, tuple):
        return type(value)(items)
    if isinstance(value, collections.deque):
        return (_TAG, "deque", "" if value.maxlen is None else str(value.maxlen), items)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return (_TAG, "namedtuple", _name_of(type(value)), items)
    return (_TAG, type(value).__name__, "", items) if isinstance(value, set | frozenset) else list(items)


def decoded(value: Any) -> Any:
    """A new value, as ``encoded`` found it."""
    if isinstance(value, Tensor):
        return value.clone()  # what was taken may be put in more than once
    if _is_tagged(value):
        return _decoded_type(value[1], value[2], value[3])
    if isinstance(value, dict):
        return {key: decoded(item) for key, item in value.items()}
    return type(value)(decoded(item) for item in value) if type(value) in (list, tuple) else value


def _is_tagged(value: Any) -> bool:
    """Whether *value* stands for one of another type."""
    return isinstance(value, tuple) and len(value) == 4 and isinstance(value[0], str) and value[0] == _TAG


def _decoded_type(encoding: str, name: str, contents: Any) -> Any:
    if encoding == "enum":
        return _class_of(name)[contents]
    if encoding == "array":
        return contents.numpy().copy()
    if encoding == "number":
        return contents.numpy()[()]
    if encoding == "dataclass":
        new = object.__new__(_class_of(name))
        for key, item in contents.items():
            object.__setattr__(new, key, decoded(item))
        return new
    items = decoded(contents)
    if encoding == "defaultdict":
        return collections.defaultdict(_BUILT_IN.get(name), items)
    if encoding == "deque":
        return collections.deque(items, int(name) if name else None)
    if encoding == "namedtuple":
        return _class_of(name)(*items)
    classes: dict[str, Any] = {"Counter": collections.Counter, "OrderedDict": collections.OrderedDict}
    return (classes | {"set": set, "frozenset": frozenset})[encoding](items)


def assigned(held: Any, value: Any, claimed: set[int]) -> Any:
    """What ``encoded`` gave, in the place of *held*: the same object with other contents, where it can be.

    *claimed* are the addresses of what must not be written: other places of the job hold it too.
    """
    new = decoded(value)
    if type(held) is not type(new) or not _claim(held, claimed):
        return new
    if isinstance(held, Tensor):
        if new.device.type != "cpu" and new.device != held.device:
            return new  # the job has moved it to an accelerator since
        if held.shape != new.shape or held.dtype != new.dtype:
            return new.to(held.device)
        with torch.no_grad():
            return held.copy_(new)
    if isinstance(held, np.ndarray):
        if held.shape != new.shape or held.dtype != new.dtype:
            return new
        held[...] = new
        return held
    contents = value[3] if _is_tagged(value) else value
    if isinstance(held, dict):
        set_items(held, contents, claimed)
    elif isinstance(held, list):
        kept = [*held, *[None] * len(contents)]
        held[:] = [assigned(kept[place], item, claimed) for place, item in enumerate(contents)]
    elif is_dataclass(held):
        for key, item in contents.items():
            object.__setattr__(held, key, assigned(getattr(held, key, None), item, claimed))
    elif isinstance(held, set | collections.deque) and getattr(held, "maxlen", None) == getattr(new, "maxlen", None):
        held.clear()
        held.extend(new) if isinstance(held, collections.deque) else held.update(new)
    else:
        return new
    return held


def set_items(held: dict[Any, Any], contents: Mapping[Any, Any], claimed: set[int]) -> None:
    """Give *held* just these items, in this order."""
    items = {key: assigned(held.get(key), item, claimed) for key, item in contents.items()}
    held.clear()
    held.update(items)


def address(tensor: Tensor) -> int:
    """Where the memory of *tensor* lies: the same for views of it."""
    return tensor.untyped_storage().data_ptr()


def _claim(held: Any, claimed: set[int]) -> bool:
    """Whether *held* may be written: nobody else has claimed it before."""
    place = address(held) if isinstance(held, Tensor) else id(held)
    free = place not in claimed
    claimed.add(place)
    return free


def is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass, by name."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _name_of(given_class: type) -> str:
    return f"{given_class.__module__}:{given_class.__qualname__}"


def _class_of(name: str) -> Any:
    """The class of that name, which the script has defined or imported by now; nothing is imported for it."""
    module, _, path = name.partition(":")
    item: Any = sys.modules.get(module)
    for part in path.split("."):
        item = getattr(item, part, None)
    if not isinstance(item, type):
        raise ConfigError(f"the state holds a {path}, which this script has not defined when the state is put in")
    return item
