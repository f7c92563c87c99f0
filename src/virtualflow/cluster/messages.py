"""What goes into the scheduler and what comes out. Times are seconds on the driver's clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
class JobsFound:
    """Jobs that were there before the scheduler: those that run, with their devices, and those that wait."""

    seconds: float
    running: tuple[tuple[Job, tuple[str, ...]], ...]
    waiting: tuple[Job, ...] = ()


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
class Progress:
    """Steps that jobs have done. Sent right before an event if the policy needs it; decides nothing by itself."""

    seconds: float
    steps_done: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Woken:
    """The time that a `WakeAt` asked for has come."""

    seconds: float


Event = JobArrived | JobChanged | JobsFound | JobEnded | DevicesLost | DevicesJoined | Progress | Woken


@dataclass(frozen=True, slots=True)
class Start:
    """A waiting job gets these devices: a new one, or a suspended one that goes on. A guest shares *host*'s."""

    job_id: str
    devices: tuple[str, ...]
    resumed: bool = False
    host: str | None = None


@dataclass(frozen=True, slots=True)
class Resize:
    """A running job goes on with exactly these devices, by a checkpoint and a restart if it cannot be resized."""

    job_id: str
    devices: tuple[str, ...]
    restart: bool = False
    host: str | None = None


@dataclass(frozen=True, slots=True)
class Suspend:
    """A running job gives up all its devices and waits, with its state kept, until the next `Start`."""

    job_id: str


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send a `Woken` at this time. A later `WakeAt` does not withdraw an earlier one."""

    seconds: float


Action = Start | Resize | Suspend | WakeAt
