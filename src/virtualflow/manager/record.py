"""One submitted job as the manager remembers it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any

import msgspec

from virtualflow.core.job_description import JobDescription
from virtualflow.core.job_state import JobState
from virtualflow.core.job_terms import JobTerms
from virtualflow.core.memory_needs import MemoryNeeds
from virtualflow.core.step_times import TimedSteps


class Wish(StrEnum):
    """Why a job that runs is being stopped."""

    PAUSE = "pause"
    CANCEL = "cancel"
    SUSPEND = "suspend"  # others need its devices
    DOWN = "down"  # the manager ends


@dataclass(frozen=True, slots=True)
class Record:
    """What a job's owner asked for, and how far it has come."""

    id: str
    description: JobDescription  # its variables are in the job's folder alone, because records are copied
    directory: str
    interpreter: str
    terms: JobTerms
    submitted: float  # seconds since the epoch, as all times here
    measured_memory: MemoryNeeds | None = None  # what its stages took when it ran; what its owner states counts
    cap: int | None = None  # devices, at most, until `resize JOB auto`
    state: JobState = JobState.QUEUED  # RUNNING from its launch until all its processes are gone
    wish: Wish | None = None
    devices: tuple[str, ...] = ()  # what the scheduler has given it
    beside: str | None = None  # the job whose devices it shares
    launches: int = 0
    token: str | None = None  # of the last launch
    crashes: int = 0  # of its coordinator, since it last made a step
    last_step: int = 0
    failed: int = 0
    resizes: int = 0
    failures: int = 0
    started: float | None = None
    ended: float | None = None
    run_seconds: float = 0.0  # before the present launch
    launched: float | None = None
    failure: str | None = None
    measured_steps: tuple[TimedSteps, ...] = ()  # what its steps took, as of its last end
    notice: str = ""  # that it has ended: whether it was sent, or why it could not be
    trouble: str | None = None  # why it was put to rest without having been asked for

    @property
    def name(self) -> str:
        return self.description.title

    @property
    def memory(self) -> MemoryNeeds | None:
        """What it needs, as far as is known."""
        return self.description.memory or self.measured_memory

    def changed(self, **facts: Any) -> Record:
        """The same with other *facts*: its own, or of its terms."""
        terms = {option.name: facts.pop(option.name) for option in fields(JobTerms) if option.name in facts}
        return replace(self, terms=replace(self.terms, **terms), **facts)

    @property
    def is_over(self) -> bool:
        return self.state.is_ended

    @property
    def max_devices(self) -> int:
        """Devices that it can use."""
        return min(limit for limit in (self.terms.demand, self.cap, self.terms.virtual_nodes) if limit is not None)


def to_json(record: Record) -> str:
    return json.dumps(asdict(record))


def from_json(text: str | bytes) -> Record:
    """What ``to_json`` made, by this version or another. Raises ValueError if that makes no sense."""
    return msgspec.convert(json.loads(text), Record)
