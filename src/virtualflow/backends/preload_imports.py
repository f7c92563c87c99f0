"""Imports in the process that workers are forked from: only what leaves it as clean as it was."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from virtualflow.program.source import is_own
from virtualflow.system.processes import children

# What torch calls to find or to open accelerators. A process that has done that can't be forked any more.
_LOOKS = ("_cuda_getDeviceCount", "_cuda_init", "_xpu_getDeviceCount", "_xpu_init", "_accelerator_hooks_device_count")
_ASK_THE_DRIVER = "PYTORCH_NVML_BASED_CUDA_CHECK"  # torch.cuda.is_available() then looks without opening anything

# Threads of libraries that take care of a fork themselves: jemalloc holds its locks meanwhile, and pyarrow, which
# datasets and so transformers import, brings one along.
_FORK_SAFE_THREADS = ("jemalloc_bg_thd",)


@dataclass(frozen=True, slots=True)
class UnsuitablePackage:
    """A package that can't be imported here, and *reason* why."""

    package: str
    reason: str


def preload(names: Sequence[str]) -> UnsuitablePackage | None:
    """Import *names*: installed modules, or what they define. The first that spoils this process ends it.

    It must then start again without that package: half of an import can't be undone.
    """
    before = _threads_and_processes()
    with _installed_only(), _no_accelerator() as looks:
        for name in names:
            package = name.split(".")[0]
            reason = _failure_of(name)
            if looks:
                reason = f"importing {name} looks for accelerators, after which no process can be forked"
            if reason:
                return UnsuitablePackage(package, reason)
            now = _threads_and_processes()
            if now[0] > before[0] or now[1] > before[1]:
                what = "a thread" if now[0] > before[0] else "a process"
                return UnsuitablePackage(package, f"importing {name} starts {what}, of which a fork would have half")
    return None


def _failure_of(name: str) -> str:
    try:
        _load(name)
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _load(name: str) -> None:
    top, *parts = name.split(".")
    module = import_module(top)
    for part in parts:
        try:
            member = getattr(module, part)  # some packages import what is asked for only then
        except AttributeError:
            member = import_module(f"{module.__name__}.{part}")
        if not isinstance(member, ModuleType):
            return
        module = member


def _threads_and_processes() -> tuple[int, int]:
    threads = [_name_of(thread) for thread in os.listdir("/proc/self/task")]
    return sum(name not in _FORK_SAFE_THREADS for name in threads), len(children())


def _name_of(thread: str) -> str:
    try:
        return Path("/proc/self/task", thread, "comm").read_text().strip()
    except OSError:  # ended meanwhile
        return _FORK_SAFE_THREADS[0]


@contextmanager
def _installed_only() -> Iterator[None]:
    """Modules of the user's own are the job's: workers load them from its snapshot."""
    path = sys.path[:]
    sys.path[:] = [entry for entry in path if entry and not is_own(entry)]
    try:
        yield
    finally:
        sys.path[:] = path


@contextmanager
def _no_accelerator() -> Iterator[list[str]]:
    """Keep imports from looking for accelerators; the list that is yielded holds their attempts."""
    torch_c: Any = import_module("torch._C")
    real = {name: getattr(torch_c, name) for name in _LOOKS if hasattr(torch_c, name)}
    looks: list[str] = []

    def refuse(*_: Any) -> NoReturn:
        looks.append("tried")  # for a package that goes on without one
        raise RuntimeError("no accelerators here")

    asked = os.environ.get(_ASK_THE_DRIVER)
    os.environ[_ASK_THE_DRIVER] = "1"
    for name in real:
        setattr(torch_c, name, refuse)
    try:
        yield looks
    finally:
        for name, function in real.items():
            setattr(torch_c, name, function)
        del os.environ[_ASK_THE_DRIVER]
        os.environ |= {_ASK_THE_DRIVER: asked} if asked is not None else {}
