"""A job whose coordinator has died, as the one that takes over finds it."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from virtualflow.core.standing import JobStanding
from virtualflow.job.wire_messages import WorkerReport


@dataclass(frozen=True, slots=True)
class FoundWorker:
    """A worker that has reported."""

    report: WorkerReport
    pid: int
    connection: socket.socket  # its line, from now on


@dataclass(frozen=True, slots=True)
class FoundJob:
    """The workers that are left, one for each device at most."""

    workers: tuple[FoundWorker, ...]

    @property
    def standing(self) -> JobStanding:
        return JobStanding({worker.report.device: worker.report.standing for worker in self.workers})

    @property
    def resume_from(self) -> str | None:
        """The checkpoint that the job began from."""
        return next((worker.report.resume_from for worker in self.workers), None)
