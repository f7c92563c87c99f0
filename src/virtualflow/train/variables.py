"""The script's own variables, as far as its loop shows them: what a resumed job, or a worker that joins, lacks.

Such a worker runs the script from the top. A variable that it has left as it was before the loop, and that had another
value when the job was in this epoch, is one that was not declared: a best score, an average of the weights, a
schedule, a memory. Nobody can know whether anything depends on it, so it is named, and not refused.
"""

from __future__ import annotations

import collections
import contextlib
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from virtualflow.train.replay import digest_of
from virtualflow.train.state import Parts

MOST_BYTES = 1 << 23  # of tensors that are visible at in one epoch
MOST_ITEMS = 16  # of a long container, at either end
MOST_NAMED = 5
_DEPTH = 2
_STARTED = time.perf_counter()
_CLOCK = (1.2e9, 4e9)  # seconds since 1970 lie there
_PLACES = tuple(str(Path(sysconfig.get_path(key)).resolve()) for key in ("stdlib", "purelib", "platlib"))
_OURS = str(Path(__file__).resolve().parent.parent)
_PLAIN = (bool, int, float, str, bytes, type(None), np.generic)
_CONTAINERS = (list, tuple, set, frozenset, dict, collections.deque)


class Variables:
    """What the frames of the script hold besides what belongs to the job."""

    def __init__(self, parts: Parts, declared: tuple[Any, ...]) -> None:
        self._parts = parts
        self._declared = declared
        self._before: dict[str, str] = {}
        self._mine: dict[str, str] = {}
        self.changed: dict[str, str] = {}  # since the loop began, and where the loop over the batches began

    def before_the_loop(self) -> None:
        self._before = self._look()

    def enter_pass(self) -> None:
        """The script is about to loop over an epoch's batches."""
        self._mine = self._look()
        before = self._before
        self.changed = {name: value for name, value in self._mine.items() if before.get(name, value) != value}

    def missing(self, jobs: dict[str, str]) -> list[str]:
        """Variables that the job had changed when it was here, *jobs*, and that this script has not."""
        mine, before = self._mine, self._before
        return [name for name, value in jobs.items() if name in before and value != before[name] == mine.get(name)]

    def _look(self) -> dict[str, str]:
        own = {id(item) for item in (self._parts, *self._declared)} | {id(module) for module in self._parts.modules()}
        own |= {id(tensor) for tensor in self._parts.parameters().values()}
        visible = _VisibleValues(own)
        values: dict[str, str] = {}
        for frame in _frames():
            for name, value in [*frame.f_locals.items(), *frame.f_globals.items()]:
                if not name.startswith("_") and name not in values:
                    with contextlib.suppress(Exception):  # of an object that does not bear to be visible at
                        values |= visible.at(name, value, 0)
        return values


class _VisibleValues:
    def __init__(self, own: set[int]) -> None:
        self._seen = own
        self._bytes = 0

    def at(self, name: str, value: Any, depth: int) -> dict[str, str]:
        """What *value* is made of, by name, in words that differ if it does."""
        if isinstance(value, _PLAIN):
            return {} if is_time(value) else {name: repr(value)}
        if id(value) in self._seen or isinstance(value, type | ModuleType | FunctionType) or depth > _DEPTH:
            return {}
        self._seen.add(id(value))
        package = type(value).__module__.partition(".")[0]
        if isinstance(value, Tensor | np.ndarray):
            return self._tensors(name, [value])
        if isinstance(value, nn.Module):
            return self._tensors(name, [*value.parameters(), *value.buffers()])
        if isinstance(value, _CONTAINERS):
            items = _ends(value)
            return self._tensors(name, items, len(value)) if all(map(_is_data, items)) else {}
        if package == "virtualflow":
            return {}
        if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            return self._tensors(name, [value.state_dict()])
        parts: dict[str, str] = {}
        if not is_library(sys.modules.get(type(value).__module__)):
            for key, item in list(getattr(value, "__dict__", {}).items()):
                parts |= self.at(f"{name}.{key}", item, depth + 1)
        return parts

    def _tensors(self, name: str, values: list[Any], length: int = 0) -> dict[str, str]:
        self._bytes += sum(getattr(value, "nbytes", 0) for value in values)
        return {name: f"{length} {digest_of(values)}"} if self._bytes <= MOST_BYTES else {}


def _frames() -> Iterator[FrameType]:
    """The frames of the script and of its own modules, from the loop outwards."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not _is_library_file(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def is_library(module: ModuleType | None) -> bool:
    """Whether *module* is installed, and not of the script's own."""
    file = getattr(module, "__file__", None)
    return (file is None and getattr(module, "__name__", "") != "__main__") or _is_library_file(file or "")


def _is_library_file(name: str) -> bool:
    # An environment may take packages from another one, whose places sysconfig does not know.
    return name.startswith((*_PLACES, _OURS, "<frozen")) or "/site-packages/" in name or "/dist-packages/" in name


def _ends(value: Any) -> list[Any]:
    items = list(value.items()) if isinstance(value, dict) else list(value)
    return items if len(items) <= 2 * MOST_ITEMS else [*items[:MOST_ITEMS], *items[-MOST_ITEMS:]]


def _is_data(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_data, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_data, value))
    return isinstance(value, (*_PLAIN, Tensor, np.ndarray)) and not isinstance(value, torch.nn.Parameter)


def is_time(value: Any) -> bool:
    """Whether *value* looks like one that a clock gave, which differs by worker."""
    return isinstance(value, float) and (_CLOCK[0] < value < _CLOCK[1] or _STARTED <= value <= time.perf_counter())
