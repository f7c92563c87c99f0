"""A manager without coordinators."""

from __future__ import annotations

import signal
from typing import Any

from virtualflow.job.folder import JobFolder


class FakeProcess:
    """A coordinator's process that does nothing until a test ends it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self.returncode

    def end(self, code: int) -> None:
        self.returncode = code

    def kill(self) -> None:
        self.end(-signal.SIGKILL)


class FakeLauncher:
    """Starts no coordinators for a manager; a test plays them. ``Fleet(launcher=FakeLauncher())``."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []  # job and token of each launch
        self.processes: list[FakeProcess] = []

    def __call__(self, folder: JobFolder, token: str, **origin: Any) -> FakeProcess:
        self.made.append((folder.path.name, token))
        self.processes.append(FakeProcess(pid=len(self.made)))
        return self.processes[-1]
