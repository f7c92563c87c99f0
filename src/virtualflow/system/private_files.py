"""Files and folders that only their owner can read: a job's script, arguments, variables and output."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path


def make_folder(path: Path) -> None:
    """*path*, with what it lies in, closed to others; also one that an older version has left open."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    close(path)


def close(path: Path) -> None:
    """Let only its owner look into *path*."""
    with contextlib.suppress(OSError):  # another's, or a disk that knows no owners
        mode = path.stat().st_mode
        if mode & 0o077:
            path.chmod(mode & 0o700)


def opener(path: str, flags: int) -> int:
    """For ``open(opener=)``: a new file is its owner's. Raises OSError at once where a FIFO would have us wait."""
    return os.open(path, flags | os.O_NONBLOCK, 0o600)


def regular_opener(path: str, flags: int) -> int:
    """For ``open(opener=)``, to read: raises OSError for anything but a regular file, and never waits for a FIFO."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return descriptor
