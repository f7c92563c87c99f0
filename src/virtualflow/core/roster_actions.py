"""What must be done about a job's membership: the actions that ``Roster.handle`` returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from virtualflow.core.generation import Generation
from virtualflow.core.mapping import DeviceId


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start a worker that joins the running job."""

    device: DeviceId


@dataclass(frozen=True, slots=True)
class KillWorker:
    """End a worker at once. *why* is for the log, if that is no usual thing."""

    device: DeviceId
    why: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class PublishGeneration:
    """Send a new generation to every worker."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class ReleaseWorker:
    """Let a worker that leaves end: the others no longer need it."""

    device: DeviceId


@dataclass(frozen=True, slots=True)
class FinishJob:
    """Every worker has ended its script."""


@dataclass(frozen=True, slots=True)
class AbandonJob:
    """The job can't go on."""

    reason: str


RosterAction = StartWorker | KillWorker | PublishGeneration | ReleaseWorker | FinishJob | AbandonJob
