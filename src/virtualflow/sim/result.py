"""What a simulated run leaves behind."""

from __future__ import annotations

from dataclasses import dataclass, field

from virtualflow.cluster.job import Job
from virtualflow.cluster.placement import Placement
from virtualflow.sim.execution import Spent


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of time in which a job had the same devices."""

    start_seconds: float
    end_seconds: float
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job fared."""

    job: Job
    start_seconds: float
    end_seconds: float
    resizes: int
    alone_seconds: float  # on its full demand, without waiting
    segments: tuple[Segment, ...]

    @property
    def jct_seconds(self) -> float:
        return self.end_seconds - self.job.arrival_seconds

    @property
    def queueing_seconds(self) -> float:
        return self.start_seconds - self.job.arrival_seconds


@dataclass(slots=True)
class Accounts:
    """Device-seconds of the whole cluster, by what the devices did. They must add up: each run checks it."""

    devices: int
    start_seconds: float = 0.0
    end_seconds: float = 0.0
    free: float = 0.0
    lost: float = 0.0
    spent: Spent = field(default_factory=Spent)

    def begin(self, seconds: float) -> None:
        self.start_seconds = self.end_seconds = seconds

    def advance(self, seconds: float, placement: Placement) -> None:
        """Book devices that no job had since the last time."""
        passed = seconds - self.end_seconds
        if passed > 0:
            self.free += passed * sum(placement.free.values())
            if placement.lost:
                self.lost += passed * len(placement.lost)
            self.end_seconds = seconds

    def close(self, spent: Spent) -> None:
        self.spent = spent
        whole, parts = self.total, self.free + self.lost + spent.assigned
        assert abs(whole - parts) <= 1e-6 * max(1.0, whole), f"{parts} device-seconds booked of {whole}"

    @property
    def total(self) -> float:
        return self.devices * (self.end_seconds - self.start_seconds)

    def share(self, device_seconds: float) -> float:
        """Of all device-seconds."""
        return device_seconds / self.total if self.total else 0.0

    @property
    def idle(self) -> float:
        """Without a job, or with one that has no use for them."""
        return self.free + self.spent.unused


@dataclass(frozen=True, slots=True)
class Run:
    """One policy on one trace."""

    policy: str
    jobs: tuple[JobResult, ...]  # in the order they ended
    accounts: Accounts
    events: int
