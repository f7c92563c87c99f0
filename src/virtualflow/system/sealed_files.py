"""Files that are written whole or not at all, and zip files that carry a digest of themselves.

The digest is the zip's own comment, so that any program that reads the file without it still does. It covers every byte
before it, and a file that has lost a part of it counts as damaged: no single bit can change unnoticed.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import secrets
import struct
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from virtualflow.errors import CheckpointError

MARK = b"virtualflow sha256 "
COMMENT = len(MARK) + 2 * hashlib.sha256().digest_size
END, END_BYTES = b"PK\5\6", 22  # of a zip file: its last record, which ends with the length of the comment after it
LARGE = 1 << 20  # from here on a digest is worth a thread


def parts_folder(path: Path) -> Path:
    """Where the parts of a file that has some lie: beside it."""
    return path.with_name(f"{path.name}.parts")


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file that becomes *path* when the ``with`` block is left without an error, and is on the disk by then."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.partial")
    # Exclusive: a file or symbolic link that lies under this name already is not written through.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(partial, flags, 0o666), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    _remove_left_behind(path)


def _sync_folder(folder: Path) -> None:
    """Have the new name on the disk, too; some file systems know no such thing."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove_left_behind(path: Path) -> None:
    """Remove what writers of *path* have left that were killed."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        writer = left.name.removeprefix(f".{path.name}.").split(".")[0]
        if writer.isdigit() and not Path("/proc", writer).exists():
            with contextlib.suppress(OSError):
                left.unlink()


class Seal:
    """Passes on to *file* what is written to it, a zip file, and puts the digest after it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._held = b""  # the last bytes so far: they change if they turn out to be the zip's last
        self._helper = ThreadPoolExecutor(1)

    def __enter__(self) -> Seal:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        self._helper.shutdown()
        if error_type is None:
            self._close()

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if len(view) >= END_BYTES:
            self._pass_on(memoryview(self._held))
            self._pass_on(view[:-END_BYTES])
            self._held = bytes(view[-END_BYTES:])
        else:
            held = self._held + bytes(view)
            self._pass_on(memoryview(held)[:-END_BYTES])
            self._held = held[-END_BYTES:]
        return len(view)

    def flush(self) -> None:
        self._file.flush()

    def _pass_on(self, data: memoryview) -> None:
        if len(data) < LARGE:
            self._digest.update(data)
            self._file.write(data)
            return
        # Both let go of the interpreter: the digest is ready when the disk, or the page cache, has the data.
        digested = self._helper.submit(self._digest.update, data)
        try:
            self._file.write(data)
        finally:
            digested.result()

    def _close(self) -> None:
        if not self._held.startswith(END) or self._held[-2:] != b"\0\0":
            raise CheckpointError("what was to be sealed is no zip file without a comment")
        self._pass_on(memoryview(self._held[:-2] + COMMENT.to_bytes(2, "little")))
        self._file.write(MARK + self._digest.hexdigest().encode())


def check(path: Path) -> bool:
    """Whether *path* is sealed. Raise CheckpointError if it is damaged, or would take more room than it has bytes."""
    try:
        with path.open("rb") as file:
            sealed = _check_digest(path, file)
            _check_sizes(path, file)
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError, OverflowError, struct.error) as error:
        raise CheckpointError(
            f"{path} cannot be read: {error}. It is truncated, damaged, or not a VirtualFlow checkpoint; use an "
            "earlier one, or save again."
        ) from error
    return sealed


def _check_digest(path: Path, file: BinaryIO) -> bool:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - END_BYTES - COMMENT))
    end = file.read()
    record, comment = end[:-COMMENT], end[-COMMENT:]
    if not record.startswith(END) and not comment.startswith(MARK):
        return False
    file.seek(0)
    digest = _digest(file, size - COMMENT)
    expected = MARK + digest.encode()
    if comment != expected:
        raise CheckpointError(
            f"{path} is damaged: its bytes are not those that were written (their sha256 is {digest[:16]}...). Use an "
            "earlier one, or save again; and look at the disk and the memory that did this."
        )
    return True


def _digest(file: BinaryIO, size: int) -> str:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(1 << 20))
    while size > 0:
        if (count := file.readinto(buffer[: min(size, len(buffer))])) == 0:  # type: ignore[attr-defined]
            raise ValueError("it became shorter")
        digest.update(buffer[:count])
        size -= count
    return digest.hexdigest()


def _check_sizes(path: Path, file: BinaryIO) -> None:
    """Everything in such a file is stored as it is, so a file that declares more than it holds is none of ours."""
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
    size, declared = path.stat().st_size, sum(entry.file_size for entry in entries)
    if declared > size or any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise CheckpointError(
            f"{path} is refused: it has {size:,} bytes and declares {declared:,} when unpacked. Checkpoints are never "
            "compressed; this is not a VirtualFlow checkpoint."
        )
