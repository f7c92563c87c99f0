"""Where workers run: a narrow protocol. It knows nothing of virtual nodes."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Protocol

from virtualflow.runtime.spec import WorkerSpec


@dataclass(frozen=True, slots=True)
class Exit:
    """A process that ended: its exit code, or the negative number of the signal that killed it."""

    pid: int
    code: int


class Backend(Protocol):
    """Starts and stops the processes of a job, and tells when one has ended."""

    def host_store(self, listening: socket.socket) -> int:
        """Serve the job's store on *listening*; return the process's id."""

    def start(self, spec: WorkerSpec, stdout: int, stderr: int, control: int) -> int:
        """Start a worker that prints to the given descriptors and hears from *control*; return its process's id."""

    def exits(self, timeout_seconds: float) -> list[Exit]:
        """The processes that have ended since the last call; waits up to *timeout_seconds* for the first."""

    def kill(self, pid: int, signal_number: int) -> None:
        """Send a signal to a worker and all that it has started."""

    def fileno(self) -> int:
        """A descriptor that is readable when ``exits`` has something to tell."""
