"""Files of lines that grow while others read them, and whose writer may die at any byte."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from pathlib import Path

from virtualflow.system.private_files import regular_opener

BLOCK = 2**18  # bytes in memory at a time


class LineWriter:
    """Appends lines to the file at *path*. Begins on a fresh line, and outlasts a full disk."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists() and not path.is_file():  # a folder or a pipe lies there
            path.replace(path.with_name(f"{path.name}.damaged"))
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        weakref.finalize(self, os.close, self._descriptor)
        self._pending = b""  # lines that a full disk has not taken yet
        self._written = 0  # bytes of them that it has
        self.begin_line()

    def begin_line(self) -> None:
        """What another writer has left unfinished at the end becomes a line of its own."""
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            self._pending = b"\n" + self._pending
        self._written = 0
        self.append(b"")

    def append(self, lines: bytes) -> None:
        """Write *lines*, or keep them until the next call if there is no room on the disk."""
        self._pending += lines
        try:
            while self._written < len(self._pending):
                self._written += os.write(self._descriptor, self._pending[self._written :])
        except OSError:  # a full disk ends no job
            pass
        whole = self._pending.rfind(b"\n", 0, self._written) + 1
        self._pending, self._written = self._pending[whole:], self._written - whole


class LineReader:
    """Reads the file at *path* as it grows: every line once, when its end has been written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._position = 0  # where the first line begins that was not read yet

    def read(self) -> Iterator[bytes]:
        """The lines since the last time, without their ends. Raises OSError if the file can't be read."""
        with open(self.path, "rb", opener=regular_opener) as file:
            file.seek(self._position)
            rest = b""
            while block := file.read(BLOCK):
                *lines, rest = (rest + block).split(b"\n")
                for line in lines:
                    self._position += len(line) + 1
                    yield line


def newest_first(path: Path) -> Iterator[bytes]:
    """The whole lines of a file from its end on, of which only so much is read as is asked for."""
    with open(path, "rb", opener=regular_opener) as file:
        begin = file.seek(0, os.SEEK_END)
        rest = b""
        unfinished = True  # what follows the last line's end
        while begin:
            size = min(BLOCK, begin)
            begin -= size
            file.seek(begin)
            rest, *lines = (file.read(size) + rest).split(b"\n")
            if lines and unfinished:
                lines.pop()
                unfinished = False
            yield from reversed(lines)
        if not unfinished:
            yield rest
