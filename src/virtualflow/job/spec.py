"""What a worker is to do, and why it has failed: plain values that travel as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Everything a worker needs to know to take part in a job."""

    job_id: str
    job_folder: str
    device: str
    devices: tuple[str, ...]
    script: str
    arguments: tuple[str, ...]
    address: str  # where this worker's own sockets listen
    patience_seconds: float
    owners: tuple[int, ...] | None = None  # the mapping given by hand: a device's index for each virtual node
    threads_per_device: int = 1
    device_type: str = "auto"
    audit: bool = False
    checkpoint_every: int = 0
    resume_from: str | None = None
    joins: bool = False  # a job that is under way
    node_sizes: tuple[int, ...] | None = None  # a plan's
    balances: bool = False  # the coordinator publishes a mapping by speed before the first step
    reports_pace: bool = False
    mixed: bool = False
    instruments: dict[str, Any] = field(default_factory=dict)  # around its engine: see train.instruments
    is_elsewhere: bool = False  # not on the coordinator's machine, so that its line may break while the job goes on
    sees_one: bool = False  # accelerator: the launcher hides the others, and knows which one it is
    hash_seed: str = "0"  # PYTHONHASHSEED

    @property
    def accelerator(self) -> int:
        """The index of the device among those of its type. One from another launcher takes the first that it sees."""
        if self.sees_one:
            return 0
        number = self.device.rpartition(":")[2]
        return int(number) if number.isdigit() else 0

    def elsewhere(self, address: str, *, sees_one: bool = False) -> WorkerSpec:
        """The same for a worker on another machine."""
        return replace(self, address=address, is_elsewhere=True, sees_one=sees_one)

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
