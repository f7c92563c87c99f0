"""Workers of a machine that have lost their coordinator take turns: one sees to the checkpoint, then all may end."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path


class Turn:
    """Waits for this process's turn, which lasts as long as the process does: if it is killed, the next one has it."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.lockf(self._file, fcntl.LOCK_EX)  # unlike flock, not shared with processes that are forked from this one
        self._family = _family()

    @property
    def is_over(self) -> bool:
        """Whether one of the same family has had its turn, and has done what was to be done."""
        return os.pread(self._file, 256, 0) == self._family

    def end(self) -> None:
        """It is done."""
        with contextlib.suppress(OSError):  # a full disk: the next one finds out by itself
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, self._family, 0)


def _family() -> bytes:
    """Which fork server this worker is from: its process, and when that began, so that no other is taken for it."""
    parent = os.getppid()
    try:
        began = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        began = "unknown"
    return f"{parent} {began}".encode()
