"""What a dataset's code can reach, and which of it bears to be copied into another process by a fork."""

from __future__ import annotations

import collections
import dis
import os
import pathlib
import random
import re
import stat
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

# Code that keeps nothing to itself but the generators, which are seeded for each example, and survives a fork.
# fmt: off
TRUSTED = frozenset({
    "__future__", "abc", "array", "base64", "bisect", "builtins", "bz2", "calendar", "cmath", "collections",
    "colorsys", "contextlib", "copy", "csv", "dataclasses", "datetime", "decimal", "difflib", "enum",
    "fractions", "functools", "glob", "gzip", "hashlib", "heapq", "html", "io", "itertools", "json", "lzma",
    "math", "numbers", "operator", "os", "pathlib", "pickle", "posix", "posixpath", "random", "re",
    "statistics", "string", "struct", "textwrap", "time", "types", "typing", "unicodedata", "warnings", "wave",
    "xml", "zlib", "numpy", "torch", "torchvision", "PIL", "virtualflow",
})
# fmt: on
CONTAINERS = (list, tuple, set, frozenset, collections.deque, dict)
_MADE_IN_C = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)
BUILT_IN = frozenset(
    {object, *CONTAINERS, collections.OrderedDict, collections.defaultdict, collections.Counter, types.SimpleNamespace}
)


class NotPlainError(Exception):
    """Something that another process must not have a copy of, or that can't be looked into."""


class Names:
    """The names that a function's code uses."""

    def __init__(self, code: types.CodeType) -> None:
        self.read: set[str] = set()
        self.written: set[str] = set()
        self.imported: set[str] = set()
        self.attributes: set[str] = set()
        names_by_operation = {
            "LOAD_GLOBAL": self.read,
            "LOAD_NAME": self.read,
            "STORE_GLOBAL": self.written,
            "DELETE_GLOBAL": self.written,
            "IMPORT_NAME": self.imported,
            "LOAD_ATTR": self.attributes,
            "LOAD_METHOD": self.attributes,
        }
        codes = [code]
        for current in codes:
            codes.extend(const for const in current.co_consts if isinstance(const, types.CodeType))
            for instruction in dis.get_instructions(current):
                if instruction.opname in names_by_operation:
                    names_by_operation[instruction.opname].add(instruction.argval)


def reached(name: str, value: Any, attributes: set[str], depth: int = 3) -> Iterator[tuple[str, Any]]:
    """*value*, or of a module that is not trusted only what the code may take from it."""
    if not isinstance(value, types.ModuleType) or trusted(value.__name__):
        yield name, value
    elif not depth or not hasattr(value, "__file__"):
        raise NotPlainError(f"{name} is the module {value.__name__}, which is not known to bear a fork")
    else:
        for key in sorted(attributes & vars(value).keys()):
            yield from reached(f"{name}.{key}", vars(value)[key], attributes, depth - 1)


def owner_of(name: str, function: Any) -> Iterator[tuple[str, Any]]:
    owner = function.__self__
    if owner is None or isinstance(owner, types.ModuleType | type):
        if not trusted(getattr(owner, "__name__", None) or function.__module__ or ""):
            module = getattr(owner, "__module__", "")
            if not trusted(str(module)):
                raise NotPlainError(f"{name} is a function of {function.__module__}, which is not known to bear a fork")
    elif owner not in (random._inst, np.random.mtrand._rand):
        yield name, owner


def check_class(name: str, checked_class: type) -> None:
    for base in checked_class.__mro__:
        if base not in BUILT_IN and any(isinstance(item, _MADE_IN_C) for item in vars(base).values()):
            raise NotPlainError(f"{name} is a {checked_class.__name__}, which can't be looked into")


def trusted(module: str | None) -> bool:
    return (module or "").partition(".")[0] in TRUSTED


def open_for_reading() -> set[int]:
    """The numbers of this process's regular files that can be read; not of memory that tensors travel in."""
    try:
        return {int(entry) for entry in os.listdir("/proc/self/fd") if _is_readable_file(int(entry))} - {0, 1, 2}
    except OSError:
        return set()  # no /proc: nothing is known


def _is_readable_file(descriptor: int) -> bool:
    try:
        text = pathlib.Path(f"/proc/self/fdinfo/{descriptor}").read_text()
        flags = int(re.findall(r"flags:\s*(\d+)", text)[0], 8)
        is_memory = os.readlink(f"/proc/self/fd/{descriptor}").startswith(("/dev/shm/", "/memfd:"))
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
    except OSError:  # the listing's own
        return False
    # One that is only appended to, such as a job's own stream of events, is no data.
    return regular and not is_memory and flags & os.O_ACCMODE != os.O_WRONLY and not flags & os.O_APPEND
