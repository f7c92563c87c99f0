"""What the coordinator tells a worker, as plain values that travel as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
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
    generation: int = 0
    owners: tuple[int, ...] | None = None  # the mapping given by hand: a device's index for each virtual node
    threads_per_device: int = 1
    device_type: str = "auto"
    audit: bool = False
    checkpoint_every: int = 0
    resume_from: str | None = None
    joins: bool = False  # a job that is under way
    node_sizes: tuple[int, ...] | None = None  # a plan's
    balances: bool = False  # the coordinator says who runs what before the first step
    reports_pace: bool = False
    mixed: bool = False
    instruments: dict[str, Any] = field(default_factory=dict)  # around its engine: see train.instruments
    is_elsewhere: bool = False  # not on the coordinator's machine, so that its line may break while the job goes on
    sees_one: bool = False  # accelerator: the launcher hides the others, and knows which one it is
    hash_seed: str = "0"  # PYTHONHASHSEED

    @property
    def accelerator(self) -> int:
        """Which of its kind the device is. One from another launcher takes the first that it sees."""
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

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WorkerSpec:
        fields: dict[str, Any] = json.loads(text)
        for name in ("devices", "arguments", "owners", "node_sizes"):
            if fields[name] is not None:
                fields[name] = tuple(fields[name])
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a worker's script ended. *consequence* marks one that another worker's end has caused."""

    device: str
    kind: str
    text: str
    consequence: bool

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Failure:
        return cls(**json.loads(text))
