"""Which processes hold a job's lock, even if the lock's file was removed, and how they were started.

Only those count that have the file open for writing, as the process that runs a job has; verbs that only look open it
for reading.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

PROCESSES = Path("/proc")
REMOVED = " (deleted)"  # what the kernel puts behind the name of a file that is gone
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)  # it has ended meanwhile, or is another user's


def holders(path: Path) -> list[int]:
    """Processes that hold the file at *path*, or one that was there before and was removed.

    Raises OSError if that can't be seen, for want of descriptors for instance.
    """
    name = os.path.realpath(path)
    return [pid for pid in _processes() if _holds(pid, (name, name + REMOVED))]


def own_descriptor(path: Path) -> int | None:
    """This process's own descriptor of that file, open for writing, if it has one."""
    name = os.path.realpath(path)
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(*GONE):
            is_it = os.readlink(f"/proc/self/fd/{descriptor}") in (name, name + REMOVED)
            if is_it and _is_written(Path("/proc/self/fdinfo", descriptor)):
                return int(descriptor)
    return None


def is_held_by(pid: int, path: Path) -> bool:
    """Whether a process is there, and holds the file at *path*, or one that was there and was removed."""
    name = os.path.realpath(path)
    return _holds(pid, (name, name + REMOVED))


def holders_of_removed(path: Path) -> list[int]:
    """Processes that hold a file that was at *path* and was removed since."""
    name = os.path.realpath(path) + REMOVED
    return [pid for pid in _processes() if _holds(pid, (name,))]


def command_line_of(pid: int) -> list[str]:
    """The command line of a process; empty if it is gone."""
    with suppress(*GONE):
        return (PROCESSES / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    return []


def environment_of(pid: int) -> dict[str, str]:
    """What a process was started with; empty if it is gone."""
    with suppress(*GONE):
        entries = (PROCESSES / str(pid) / "environ").read_bytes().decode(errors="replace").split("\0")
        return dict(entry.split("=", 1) for entry in entries if "=" in entry)
    return {}


def directory_of(pid: int) -> str | None:
    """Where a process works."""
    with suppress(*GONE):
        return os.readlink(PROCESSES / str(pid) / "cwd")
    return None


def send(pid: int, path: Path, number: int) -> bool:
    """Send a signal to a process if it still holds the file at *path*; return whether it did.

    Its number may be another's by now, so the process is held on to while it is looked at.
    """
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        name = os.path.realpath(path)
        if not _holds(pid, (name, name + REMOVED)):
            return False
        signal.pidfd_send_signal(process, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(process)


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir(PROCESSES) if name.isdecimal()]
    except FileNotFoundError:  # no Linux
        return []


def _holds(pid: int, names: Collection[str]) -> bool:
    folder = PROCESSES / str(pid)
    with suppress(*GONE):
        for descriptor in os.listdir(folder / "fd"):
            with suppress(*GONE):
                if os.readlink(folder / "fd" / descriptor) in names and _is_written(folder / "fdinfo" / descriptor):
                    return True
    return False


def _is_written(about: Path) -> bool:
    """Whether a descriptor may be written to, as its entry in ``fdinfo`` shows."""
    flags = [line.split()[1] for line in about.read_text().splitlines() if line.startswith("flags:")]
    return any(int(bits, 8) & os.O_ACCMODE != os.O_RDONLY for bits in flags)  # none: closed meanwhile
