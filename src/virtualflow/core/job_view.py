"""One job as verbs, the page and reports show it, whether it runs in a cluster, alone or simulated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from virtualflow.core.job_state import JobState


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job's training has come."""

    step: int = 0  # committed steps
    steps: int | None = None  # of the whole job, as far as its script has announced them
    loss: float | None = None
    examples_per_second: float | None = None
    eta_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class JobView:
    """The names are the keys of the HTTP API. Times are seconds since the epoch."""

    id: str
    name: str
    script: str
    state: JobState
    devices: list[str]  # that its workers are on
    step: int | float  # a simulation counts parts of steps
    steps: int | float | None
    loss: float | None
    examples_per_second: float | None
    eta_seconds: float | None
    priority: float
    demand: int  # devices that it asks for
    want: int  # devices that it can use now
    min: int
    cap: int | None
    virtual_nodes: int | None
    mapping: dict[str, list[int]]  # the virtual nodes of each device
    queued_seconds: float
    run_seconds: float
    resizes: int
    failures: int
    reason: str  # why it does not run, or not on all that it asks for
    submitted: float
    started: float | None
    ended: float | None

    @property
    def part_done(self) -> float | None:
        """From 0 to 1, if the number of steps is known."""
        return min(1.0, self.step / self.steps) if self.steps else None

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found
