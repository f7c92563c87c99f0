"""What a dataset consists of: all that its code can reach, whether it is plain data, and whether it has changed since.

A forked process has everything as it was at the fork. That is the same as loading in the training thread if nothing
there changes, and if nothing is shared between the two: no open file, lock, thread or generator.
"""

from __future__ import annotations

import enum
import functools
import itertools
import pathlib
import re
import types
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from virtualflow.train.reach import (
    BUILT_IN,
    CONTAINERS,
    Names,
    NotPlainError,
    check_class,
    open_for_reading,
    owner_of,
    reached,
    trusted,
)

MOST_OBJECTS = 200_000  # beyond that, looking costs more than it may save
SMALL = 1_000  # items of a container that are compared one by one
SMALL_BYTES = 1 << 20  # of all arrays that are compared before every step
MOST_BYTES = 1 << 31  # of all arrays that are compared at the end; those with flags.writeable=False do not count
MOST_OFTEN = 5_000  # objects that are compared before every step; the rest once, at the end

_LEAVES = frozenset(
    {int, float, complex, bool, str, bytes, type(None), type(...), type(NotImplemented), range, slice, re.Pattern}
    | {torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, np.ufunc, type(np.concatenate)}
)
_PURE = (enum.Enum, np.generic, np.dtype, pathlib.PurePath)  # by inheritance: values that do not change
_CODE: tuple[type, ...] = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)
_CODE += (property, staticmethod, classmethod, type, types.ModuleType)
_UNRELATED = frozenset({"logging", "threading", "multiprocessing", "concurrent", "queue", "weakref", "asyncio"})


@dataclass(slots=True)
class _Watched:
    """A thing that may change, and what it was."""

    name: str
    look: Callable[[], tuple[Any, ...]]
    before: tuple[Any, ...]
    named: bool = False  # what it looks at alternates between names and values

    def change(self) -> str | None:
        """The name of what is not as it was."""
        now, before = self.look(), self.before
        if len(now) == len(before) and all(map(_same, now, before)):
            return None
        place = next((place for place, pair in enumerate(zip(now, before, strict=False)) if not _same(*pair)), -1)
        if not self.named or not now:
            return self.name
        return f"{self.name}.{now[place - 1] if place % 2 else now[place]}" if place >= 0 else f"{self.name}.{now[-2]}"


class Footprint:
    """All that is reachable from *roots*, as it is now.

    *strict* follows code as well (closures, globals, classes) and raises NotPlainError at the first thing that is not
    plain data; otherwise what can't be looked into is left out.
    """

    def __init__(self, roots: dict[str, Any], *, strict: bool) -> None:
        self._strict = strict
        self._seen: dict[int, Any] = {}
        self._often: list[_Watched] = []
        self._rarely: list[_Watched] = []
        self._bytes = 0
        self._numbers: set[int] = set()
        self._walk(roots)
        if strict and (shared := self._numbers & open_for_reading()):
            raise NotPlainError(f"holds {min(shared)}, the number of an open file, whose position would be shared")

    def change(self, *, everything: bool = False) -> str | None:
        """The name of something that is not as it was; large arrays only with *everything*."""
        watched = itertools.chain(self._often, self._rarely if everything else ())
        return next((name for entry in watched if (name := entry.change()) is not None), None)

    def renew(self) -> None:
        """Take what is there now for what was."""
        for entry in self._often:
            entry.before = entry.look()

    def _walk(self, roots: dict[str, Any]) -> None:
        stack = list(roots.items())
        while stack:
            name, value = stack.pop()
            # By type, never by __class__: a proxy may do anything when asked for that.
            if type(value) in _LEAVES or issubclass(type(value), _PURE):
                if type(value) is int:
                    self._numbers.add(value)
                continue
            if id(value) in self._seen:
                continue
            self._seen[id(value)] = value  # kept alive, so that no other object gets its id
            if len(self._seen) > MOST_OBJECTS:
                if self._strict:
                    raise NotPlainError(f"reaches more than {MOST_OBJECTS} objects")
                return
            stack.extend(self._parts(name, value))

    def _parts(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        value_type = type(value)
        if issubclass(value_type, Tensor):
            self._see_tensor(name, value)
        elif issubclass(value_type, np.ndarray):
            yield from self._see_array(name, value)
        elif value_type is bytearray:
            self._watch(name, lambda: (bytes(value),))
        elif not issubclass(value_type, _CODE):
            yield from self._see_object(name, value)
        elif self._strict:
            yield from self._see_code(name, value)

    def _watch(
        self, name: str, look: Callable[[], tuple[Any, ...]], *, often: bool = True, named: bool = False
    ) -> None:
        if often and len(self._often) < MOST_OFTEN:
            self._often.append(_Watched(name, look, look(), named))
        elif self._strict:
            self._rarely.append(_Watched(name, look, look(), named))

    def _see_tensor(self, name: str, value: Tensor) -> None:
        if self._strict and (value.device.type != "cpu" or value.layout != torch.strided or value.is_shared()):
            raise NotPlainError(f"{name} is a tensor on {value.device} that is shared, sparse or not in main memory")
        self._watch(name, lambda: (value._version, tuple(value.shape)))

    def _see_array(self, name: str, value: np.ndarray[Any, Any]) -> Iterator[tuple[str, Any]]:
        if self._strict and type(value) not in (np.ndarray, np.memmap):
            raise NotPlainError(f"{name} is a {type(value).__name__}")
        if value.dtype.hasobject:
            yield name, value.ravel().tolist()
            return
        if not value.flags.writeable:
            return
        if isinstance(value, np.memmap) and value.mode != "c" and self._strict:
            raise NotPlainError(f"{name} is a file that may be written to")
        self._bytes += value.nbytes
        if self._bytes <= SMALL_BYTES:
            self._watch(name, lambda: (value.tobytes(),))
        elif self._bytes > MOST_BYTES and self._strict:
            raise NotPlainError(f"{name} is one of so large arrays that looking for changes takes too long")
        else:
            self._watch(name, lambda: (_checksum(value),), often=False)

    def _see_object(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        value_type = type(value)
        if self._strict:
            check_class(name, value_type)
        elif value_type.__module__.partition(".")[0] in _UNRELATED:
            return
        if issubclass(value_type, CONTAINERS):
            yield from self._see_items(name, value)
        if attributes := _attributes(value):
            self._watch(name, lambda: tuple(itertools.chain.from_iterable(_attributes(value).items())), named=True)
            yield from ((f"{name}.{key}", item) for key, item in attributes.items())
        if self._strict and value_type not in BUILT_IN:
            yield f"class {value_type.__name__}", value_type

    def _see_items(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        if not isinstance(value, tuple | frozenset):
            self._watch(name, lambda: _items(value), often=len(value) <= SMALL)
        if len(value) > SMALL and all(map(_all_leaves, _columns(value))):
            return
        if isinstance(value, dict):
            yield from ((f"{name}[{key!r}]", item) for key, item in value.items())
            yield from ((f"a key of {name}", key) for key in value)
        else:
            yield from ((f"{name}[{place}]", item) for place, item in enumerate(value))

    def _see_code(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, functools.partial):
            yield from ((name, part) for part in (value.func, value.args, value.keywords))
        elif isinstance(value, types.MethodType):
            yield from ((name, value.__func__), (name, value.__self__))
        elif isinstance(value, staticmethod | classmethod):
            yield name, value.__func__
        elif isinstance(value, property):
            yield from ((name, part) for part in (value.fget, value.fset, value.fdel))
        elif isinstance(value, types.BuiltinFunctionType):
            yield from owner_of(name, value)
        elif isinstance(value, types.FunctionType):
            if not trusted(value.__module__):
                yield from self._see_function(name, value)
        elif isinstance(value, type):
            if not trusted(value.__module__):
                yield from self._see_class(name, value)
        elif not trusted(value.__name__):
            raise NotPlainError(f"{name} is the module {value.__name__}, which is not known to bear a fork")

    def _see_class(self, name: str, seen_class: type) -> Iterator[tuple[str, Any]]:
        def data() -> dict[str, Any]:
            return {key: item for key, item in vars(seen_class).items() if not key.startswith(("__", "_abc_"))}

        self._watch(name, lambda: tuple(data().values()))
        skipped = (types.MemberDescriptorType, types.GetSetDescriptorType)
        functions = {key: item for key, item in vars(seen_class).items() if isinstance(item, types.FunctionType)}
        is_record = issubclass(seen_class, tuple) and hasattr(seen_class, "_fields")
        for key, item in (functions if is_record else functions | data()).items():
            if not isinstance(item, skipped):
                yield f"{seen_class.__name__}.{key}", item
        yield from ((name, base) for base in seen_class.__bases__ if base not in BUILT_IN)

    def _see_function(self, name: str, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
        for cell in function.__closure__ or ():
            self._watch(name, functools.partial(_contents, cell))
            yield from ((f"a variable of {function.__qualname__}", part) for part in _contents(cell))
        yield from ((name, part) for part in function.__defaults__ or ())
        yield from ((name, part) for part in (function.__kwdefaults__ or {}).values())
        names = Names(function.__code__)
        if names.written:
            raise NotPlainError(f"{function.__qualname__} writes the global {min(names.written)}")
        if unknown := [module for module in names.imported if not trusted(module)]:
            raise NotPlainError(f"{function.__qualname__} imports {unknown[0]}, which is not known to bear a fork")
        space = function.__globals__
        used = [key for key in names.read if key in space]
        look = lambda: tuple(itertools.chain.from_iterable((key, space.get(key)) for key in used))  # noqa: E731
        self._watch(f"globals of {function.__qualname__}", look, named=True)
        for key in used:
            yield from reached(key, space[key], names.attributes)


def _attributes(value: Any) -> dict[str, Any]:
    attributes = dict(getattr(value, "__dict__", {}))
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        attributes |= {key: getattr(value, key, None) for key in ([slots] if isinstance(slots, str) else slots)}
    return attributes


def _items(value: Any) -> tuple[Any, ...]:
    return tuple(itertools.chain(value, value.values()) if isinstance(value, dict) else value)


def _contents(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # still empty
        return ()


def _columns(value: Any) -> Iterator[Iterable[Any]]:
    """The items of a long container, of tuples and lists in it their items: a list of (path, label) is plain."""
    for side in (value, value.values()) if isinstance(value, dict) else (value,):
        pairs = set(map(type, side)) <= {tuple, list}
        yield itertools.chain.from_iterable(side) if pairs else side


def _all_leaves(items: Iterable[Any]) -> bool:
    return set(map(type, items)) <= _LEAVES


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    return type(one) is type(other) and (type(one) in _LEAVES or type(one) is tuple) and bool(one == other)


def _checksum(array: np.ndarray[Any, Any]) -> int:
    return zlib.crc32(array.data if array.flags.c_contiguous else array.tobytes())
