"""What a worker is to do, and why it has failed: plain values that travel as JSON."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from virtualflow.core.job_description import JobDescription


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Everything a worker needs to know to take part in a job."""

    job_id: str
    description: JobDescription
    job_folder: str
    device: str
    devices: tuple[str, ...]
    address: str  # where this worker's own sockets listen
    patience_seconds: float
    resume_from: str | None = None
    joins: bool = False  # a job that is under way
    balances: bool = False  # the coordinator publishes a mapping by speed before the first step
    reports_pace: bool = False
    mixed: bool = False
    is_elsewhere: bool = False  # not on the coordinator's machine, so that its line may break while the job goes on
    may_outlive: bool = False  # its coordinator: if that dies, another one of this machine takes over
    sees_one: bool = False  # accelerator: the launcher hides the others, and knows which one it is

    @property
    def instruments(self) -> dict[str, Any]:
        """What is put around its engine: see train.instruments."""
        return {
            "emulated": self.description.emulated.get(self.device),
            "measurement": self.description.profiling,
            "replay": self.description.replay,
        }

    def elsewhere(self, address: str, *, sees_one: bool = False) -> WorkerSpec:
        """The same for a worker on another machine."""
        return replace(self, address=address, is_elsewhere=True, may_outlive=False, sees_one=sees_one)

    def in_folder(self, folder: str, *, resume_from: str | None = None) -> WorkerSpec:
        """The same for one that does not see the job's folder."""
        return replace(self, job_folder=folder, resume_from=resume_from if self.resume_from else None)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a job, or a worker's script, ended. *consequence* marks one that another worker's end has caused."""

    device: str  # the worker's; empty if it is no single one's
    cause: str  # an exception's name, or one of the words below
    text: str
    consequence: bool = False


CHANGED = "changed"  # a file of the job
EXIT = "exit"  # the script called sys.exit
LATE = "late"  # the workers did not reach a step boundary in time
LOST = "lost"  # workers were killed
NO_MAPPING = "mapping"
