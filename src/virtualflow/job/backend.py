"""Where workers run: a narrow protocol. It knows nothing of virtual nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from virtualflow.job.spec import WorkerSpec


@dataclass(frozen=True, slots=True)
class Exit:
    """A process that ended: its exit code, or the negative number of the signal that killed it."""

    process: int
    code: int
    left: tuple[str, ...] = ()  # the commands of what it had started and left behind, which were ended with it


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process is: its machine's address and its id there, which is 0 until it is known."""

    machine: str
    pid: int


class Backend(Protocol):
    """Starts and stops the processes of a job, on any machines, and reports when one has ended.

    A process has a number here. For one of this machine, that is its process id.
    """

    @property
    def address(self) -> str:
        """Where workers reach this machine."""

    def check(self, devices: Sequence[str]) -> None:
        """Raise LaunchError if there are no such *devices*, all at once, to start workers on."""

    def start(self, spec: WorkerSpec, stdout: int, stderr: int, control: int) -> int:
        """Start a worker that prints to the given descriptors, with its line at *control*; return its number at once.

        Raises NotReadyError if that is not possible now.
        """

    def exits(self, timeout_seconds: float) -> list[Exit]:
        """The processes that have ended since the last call; waits up to *timeout_seconds* for the first."""

    def kill(self, process: int, signal_number: int) -> None:
        """Send a signal to a worker and all that it has started."""

    def place_of(self, process: int) -> Place:
        """Where a process is."""

    def fileno(self) -> int:
        """A descriptor that is readable when ``exits`` has something to return."""
