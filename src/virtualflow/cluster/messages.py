"""What goes into the scheduler and what comes out. Times are seconds on the driver's clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from virtualflow.cluster.job import Job


@dataclass(frozen=True, slots=True)
class JobArrived:
    seconds: float
    job: Job


@dataclass(frozen=True, slots=True)
class JobChanged:
    """Its owner asks for something else, or more is known of it than before."""

    seconds: float
    job: Job


@dataclass(frozen=True, slots=True)
class JobsRestored:
    """Jobs that are older than the scheduler: those that run, with their devices, and those that wait."""

    seconds: float
    running: tuple[tuple[Job, tuple[str, ...]], ...]
    waiting: tuple[Job, ...] = ()
    attained: Mapping[str, float] = field(default_factory=dict)  # service so far, in device-seconds, by job id


@dataclass(frozen=True, slots=True)
class JobEnded:
    """It finished, failed for good, or was withdrawn: its devices are free."""

    seconds: float
    job_id: str


@dataclass(frozen=True, slots=True)
class DevicesLost:
    """These devices are gone; jobs on them go on with the others they have, or wait."""

    seconds: float
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DevicesJoined:
    """Lost devices are back, or a new machine has come."""

    seconds: float
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProgressReported:
    """Steps that jobs have done. Sent right before an event if the policy needs it; decides nothing by itself."""

    seconds: float
    steps_done: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Woken:
    """The time that a `WakeAt` asked for has come."""

    seconds: float


Event = JobArrived | JobChanged | JobsRestored | JobEnded | DevicesLost | DevicesJoined | ProgressReported | Woken


@dataclass(frozen=True, slots=True)
class StartJob:
    """A waiting job gets these devices: a new one, or a suspended one that goes on. With *host*, it shares *host*'s."""

    job_id: str
    devices: tuple[str, ...]
    resumed: bool = False
    host: str | None = None


@dataclass(frozen=True, slots=True)
class ReallocateJob:
    """A running job goes on with exactly these devices, by a checkpoint and a restart if it cannot be resized."""

    job_id: str
    devices: tuple[str, ...]
    restart: bool = False
    host: str | None = None


@dataclass(frozen=True, slots=True)
class SuspendJob:
    """A running job gives up all its devices and waits, with its state kept, until the next `StartJob`."""

    job_id: str


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send a `Woken` at this time. A later `WakeAt` does not withdraw an earlier one."""

    seconds: float


Action = StartJob | ReallocateJob | SuspendJob | WakeAt
