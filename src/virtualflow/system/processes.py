"""What keeps processes from outliving those who own them (Linux)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_SHOWN = 80  # characters of a command
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)  # it has ended meanwhile, or is another user's


@dataclass(frozen=True, slots=True)
class Child:
    """A process whose parent this one is, by birth or because its own parent has ended."""

    pid: int
    command: str
    has_ended: bool


def die_with_parent() -> None:
    """Have the kernel end this process when its parent ends, however that happens."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of processes that this process's descendants leave behind."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(option, value)


def children() -> list[Child]:
    """The processes whose parent this one is."""
    return [child for name in os.listdir("/proc") if name.isdigit() and (child := _child(int(name))) is not None]


def end_children(spared: set[int], marker: str = "") -> list[Child]:
    """End all children but *spared*, and what they leave in turn; return those that were still running.

    With a *marker*, only those that were started with it in their environment. Raises OSError if there is no
    descriptor to look with.
    """
    ended: list[Child] = []
    while remaining := [child for child in children() if child.pid not in spared and _has(child, marker)]:
        for child in remaining:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, 0)
        ended += [child for child in remaining if not child.has_ended]
    return ended


def _has(child: Child, marker: str) -> bool:
    try:
        return marker.encode() in Path(f"/proc/{child.pid}/environ").read_bytes()
    except _GONE:
        return False


def _child(pid: int) -> Child | None:
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
        if int(parent) != os.getpid():
            return None
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except _GONE:
        return None
    return Child(pid, command.strip()[:_SHOWN], state == "Z")
