"""Files and folders for their owner alone: a job's script, arguments, variables and output are nobody else's."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def make_folder(path: Path) -> None:
    """*path*, with what it lies in, closed to others; also one that an older version has left open."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    close(path)


def close(path: Path) -> None:
    """Nobody but its owner may look into *path*."""
    with contextlib.suppress(OSError):  # another's, or a disk that knows no owners
        mode = path.stat().st_mode
        if mode & 0o077:
            path.chmod(mode & 0o700)


def opener(path: str, flags: int) -> int:
    """For ``open(opener=)``: a new file is its owner's."""
    return os.open(path, flags, 0o600)
