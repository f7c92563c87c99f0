"""What the workers of a job use of their machines: live figures in a small file of the job's folder.

They are for people to look at, so the file is not synced to the disk, and the figures are no part of the job's state.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import msgspec

from virtualflow.core.job_view import DeviceUse
from virtualflow.job.json_lines import encoded
from virtualflow.system import private_files

FILE = "use.json"
WRITE_SECONDS = 1.0  # between two writes
Uses = dict[str, DeviceUse]  # by device


class UseRecorder:
    """Keeps each worker's last report, and writes them to the job's folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._uses: Uses = {}
        self._is_new = False
        self._write_after = 0.0

    def note(self, device: str, use: DeviceUse) -> None:
        self._uses[device] = use
        self._is_new = True

    def write(self, devices: Collection[str], now: float) -> None:
        """Write what workers on *devices* use, if there is something new and the last write was a while ago."""
        if not self._is_new or now < self._write_after:
            return
        self._uses = {device: use for device, use in self._uses.items() if device in devices}
        self._is_new, self._write_after = False, now + WRITE_SECONDS
        partial = self._path.with_name(f".{FILE}.partial")
        with suppress(OSError):  # a full disk: then there are no figures
            with open(partial, "wb", opener=private_files.opener) as file:
                file.write(encoded(self._uses))
            os.replace(partial, self._path)


class UseReader:
    """Reads the figures again and again; a look that finds nothing new costs little."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._written: tuple[int, int] | None = None
        self._uses: Uses = {}

    def read(self) -> Uses:
        """The newest figures by device; none if the file is missing or makes no sense."""
        try:
            status = self._path.stat()
            if (written := (status.st_ino, status.st_mtime_ns)) != self._written:
                self._written, self._uses = written, {}
                with open(self._path, "rb", opener=private_files.regular_opener) as file:
                    self._uses = msgspec.json.decode(file.read(), type=Uses)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            self._uses = {}
        return self._uses
