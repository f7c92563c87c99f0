"""What keeps processes from outliving those who own them (Linux)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MARKER = "VF_FORKED_FOR"  # a variable of all processes that workers of one job on one machine have started
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


def end_children(
    spared: set[int], marker: str = "", is_spared: Callable[[int], bool] = lambda pid: False
) -> list[Child]:
    """End all children but *spared*, and what they leave in turn; return those that were still running.

    *is_spared* is asked for each other one, since new ones come while this goes on. With a *marker*, only those end
    that were started with it in their environment. Raises OSError if there is no descriptor to look with.
    """
    ended: list[Child] = []
    while remaining := [
        child
        for child in children()
        if child.pid not in spared and _is_marked(child.pid, marker) and not is_spared(child.pid)
    ]:
        for child in remaining:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, 0)
        ended += [child for child in remaining if not child.has_ended]
    return ended


def end_marked(marker: str, spared: set[int]) -> list[str]:
    """End all processes that were started with *marker* in their environment, though no one of *spared* owns them.

    For who is not their parent. Returns the commands of those that were ended.
    """
    ended = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        if (pid := int(name)) != os.getpid() and _is_marked(pid, marker) and not _owned(pid, spared):
            with contextlib.suppress(*_GONE):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                os.kill(pid, signal.SIGKILL)
                ended.append(command.strip()[:_SHOWN])
    return ended


def _owned(pid: int, owners: set[int]) -> bool:
    """Whether a process, or one that it descends from, is among *owners*."""
    while pid > 1:
        if pid in owners:
            return True
        pid = _parent(pid)
    return False


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except _GONE:
        return 0


class Stranger:
    """A process that this one did not start, and holds on to: its number can't become another's meanwhile."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """None while it runs."""
        waiting = select.poll()
        waiting.register(self._pidfd, select.POLLIN)
        return -signal.SIGKILL if waiting.poll(0) else None

    def wait(self) -> int:
        """Until it has ended."""
        select.select([self._pidfd], [], [])
        return -signal.SIGKILL

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)


def _is_marked(pid: int, marker: str) -> bool:
    try:
        return marker.encode() in Path(f"/proc/{pid}/environ").read_bytes()
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
