"""Who has changed what in a cluster, and who was refused: a line of JSON for each request, in files."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from virtualflow.events.lines import LineReader, LineWriter
from virtualflow.system import private_files

AUDIT_LOG = "audit.jsonl"
MAX_BYTES = 8 << 20  # then a new file is begun
KEPT = 4  # older files
MOST_SHOWN = 10_000  # entries
BURST = 30  # refusals of one token, or of all strangers, that are written in each span of time
BURST_SECONDS = 60.0

_log = logging.getLogger(__name__)


class AuditEntry(msgspec.Struct, frozen=True):
    """A request. *outcome* is done, refused or failed; *unlogged* counts refusals of the same token before it."""

    time: float  # seconds since the epoch
    token: str  # its name; empty for a stranger
    role: str
    remote: str  # the address that it came from
    verb: str
    outcome: str
    job: str = ""
    on: str = ""  # a device, or a token
    asked: dict[str, Any] = {}  # what else was said; of a submit, nothing
    why: str = ""  # it was refused
    unlogged: int = 0


class AuditLog:
    """The one writer of the log in *folder*; without that, nothing is written. May be used from any thread."""

    def __init__(self, folder: Path | None, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self._path = folder / AUDIT_LOG if folder is not None else None
        self._lock = threading.Lock()
        self._writer: LineWriter | None = None
        self._refused: dict[str, tuple[float, int]] = {}  # by token: since when, and how many

    def note(self, entry: AuditEntry) -> None:
        if self._path is None:
            return
        with self._lock:
            unlogged = self._count(entry)
            if unlogged is None:
                return
            line = msgspec.json.encode(msgspec.structs.replace(entry, unlogged=unlogged)) + b"\n"
            try:
                self._writer_at(self._path).append(line)
            except OSError as error:  # a full disk keeps nobody from stopping a job
                _log.warning("the audit log lacks %s, which can't be written: %s", line.decode().strip(), error)

    def _count(self, entry: AuditEntry) -> int | None:
        """How many refusals before this one were left out; None if this one is, too.

        Whoever is refused can ask any number of times, and must not push out what others have done.
        """
        if entry.outcome != "refused":
            return 0
        since, count = self._refused.get(entry.token, (entry.time, 0))
        if not 0 <= entry.time - since < BURST_SECONDS:
            self._refused[entry.token] = (entry.time, 1)
            return max(0, count - BURST)
        self._refused[entry.token] = (since, count + 1)
        return 0 if count < BURST else None

    def _writer_at(self, path: Path) -> LineWriter:
        if path.is_file() and path.stat().st_size > MAX_BYTES:
            for number in range(KEPT - 1, 0, -1):
                if (older := _numbered(path, number)).exists():
                    older.replace(_numbered(path, number + 1))
            path.replace(_numbered(path, 1))
            self._writer = None
        if self._writer is None or not path.exists():
            self._writer = LineWriter(path)
            private_files.close(path)
        return self._writer


class AuditReader:
    """Reads the log in *folder*, oldest first. *damaged* counts the lines that were skipped."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / AUDIT_LOG
        self.damaged = 0

    def read(self, since: float = 0.0) -> Iterator[AuditEntry]:
        """The entries from *since* on, in seconds since the epoch."""
        for path in (*(_numbered(self._path, number) for number in range(KEPT, 0, -1)), self._path):
            if not path.exists():
                continue
            for line in LineReader(path).read():
                entry = _decoded(line)
                if entry is None and line.strip():
                    self.damaged += 1
                if entry is not None and entry.time >= since:
                    yield entry


def entries_in(folder: Path, since: float) -> dict[str, Any]:
    """The last entries from *since* on, as JSON, and how many lines could not be read."""
    reader = AuditReader(folder)
    entries = deque(reader.read(since), maxlen=MOST_SHOWN)
    return {"entries": msgspec.to_builtins(list(entries)), "damaged": reader.damaged}


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _decoded(line: bytes) -> AuditEntry | None:
    try:
        return msgspec.json.decode(line, type=AuditEntry)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
