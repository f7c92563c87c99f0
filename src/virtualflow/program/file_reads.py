"""Which files a script reads: noted before its first step, and refused if they are no longer what the job has read."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from virtualflow.program.manifest import MOST_NOTED, NO_CONFIG, Program, changed_text, may_be_config
from virtualflow.program.overlay import Overlay, Reports
from virtualflow.program.source import digest_of_file

MOST_WRITTEN = 1000
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class ChangedFile(BaseException):
    """The script is about to read a file that has changed since the job read it. No ``except`` of its may hide that."""


class Reading:
    """Hears of every file that this process opens."""

    def __init__(self, overlay: Overlay, folder: str, current: Callable[[], Program], reports: Reports) -> None:
        """*folder* is the job's own; *current* is the program as the coordinator knows it by now."""
        self._overlay = overlay
        self._folder = folder + os.sep
        self._current = current
        self._reports = reports
        self._noted = dict(overlay.program.noted)
        self._digests: dict[str, str] = {}
        self._written = set(overlay.program.written)
        self._busy = threading.local()
        self.notes = True  # until the first step

    @property
    def digests(self) -> dict[str, str]:
        """What the script has read so far, with digests."""
        return dict(self._digests)

    def start(self) -> None:
        sys.addaudithook(self._on_audit_event)

    def _on_audit_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            name, _, flags = arguments
            self._opened(name, writes=bool(flags & _WRITES))
        elif event in ("os.rename", "os.remove", "os.truncate"):
            self._opened(arguments[0], writes=True)
            if event == "os.rename":
                self._opened(arguments[1], writes=True)

    def _opened(self, name: Any, *, writes: bool) -> None:
        if not isinstance(name, (str, bytes, os.PathLike)) or getattr(self._busy, "now", False):
            return
        self._busy.now = True  # looking at a file opens it
        try:
            file = os.path.abspath(os.fsdecode(name))
            if writes:
                self._note_written(file)
            elif file not in self._written and not file.startswith(self._folder):
                self._note_read(file)
        finally:
            self._busy.now = False

    def _note_written(self, file: str) -> None:
        self._overlay.forget(file)
        ours = file.startswith(self._folder) or file.endswith(NO_CONFIG)
        matters = len(self._written) < MOST_WRITTEN or file in self._noted or file in self._digests
        if file not in self._written and matters and not ours:
            self._written.add(file)
            self._reports.file_written(file)

    def _note_read(self, file: str) -> None:
        known, copy = self._noted.get(file), self._overlay.copy_of(file)
        if known is None and (not self.notes or file in self._digests or len(self._digests) >= MOST_NOTED):
            return
        if copy is not None:
            if not file.endswith(NO_CONFIG):
                self._digests[file] = digest_of_file(copy) or ""
            return
        if known is None and not may_be_config(file):
            return
        digest = digest_of_file(file)
        if digest is None:
            return
        if known is not None and known != digest and file not in self._current().written:
            program = self._overlay.program
            since = "the job read it" if file in program.read else "the job was handed in"
            raise ChangedFile(changed_text([program.shown(file)], since))
        if self.notes and file not in self._digests:
            self._digests[file] = digest
            self._reports.file_read(file, digest)
