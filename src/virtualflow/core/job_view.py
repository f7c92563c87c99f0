"""One job as verbs, the page and reports show it, whether it runs in a cluster, alone or simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from virtualflow.core.job_description import JobDescription
from virtualflow.core.job_state import JobState
from virtualflow.core.job_terms import JobTerms
from virtualflow.core.memory_needs import MemoryNeeds


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job's training has come."""

    step: int = 0  # committed steps
    steps: int | None = None  # of the whole job, as far as its script has announced them
    loss: float | None = None
    examples_per_second: float | None = None
    eta_seconds: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)  # the last value of each, by name


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What the worker on a device uses, by its own last report."""

    cpu_cores: float  # kept busy, over the last seconds
    memory_bytes: int  # of main memory
    accelerator_bytes: int | None = None  # in tensors on its accelerator, by torch's count; None without one
    stage_sizes: tuple[tuple[int, int], ...] = ()  # each stage that it holds, with its bytes after a step


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
    min: int  # devices: it waits rather than run on fewer
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
    metrics: dict[str, float] = field(default_factory=dict)  # the last value of each, by name
    use: dict[str, DeviceUse] = field(default_factory=dict)  # of each device, while the job runs
    by: float | None = None  # its deadline
    deadline: str = ""  # whether that will be met, in words
    late: bool | None = None  # whether it will be missed, or was; None while that is open
    ends: float | None = None  # when it will end, for jobs with a deadline; at the earliest while it waits
    owner: str = ""  # who has submitted it to a manager
    sweep: str = ""  # with which other jobs it was submitted
    parameters: dict[str, str] = field(default_factory=dict)  # of the sweep
    corruption: list[str] = field(default_factory=list)  # that its sentinel has found, in words
    stages: int | None = None  # that its model is cut into; *mapping* has the nodes of which a device runs any stage

    @property
    def part_done(self) -> float | None:
        """From 0 to 1, if the number of steps is known."""
        return min(1.0, self.step / self.steps) if self.steps else None

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


@dataclass(frozen=True, slots=True)
class MeasuredSpeed:
    """What steps took on devices that the job had, and what the model of its speed makes of it."""

    devices: dict[str, int]  # by type
    waves: dict[str, int]  # the most virtual nodes on one device, by type
    steps: int
    step_seconds: float
    predicted_step_seconds: float


@dataclass(frozen=True, slots=True)
class PredictedSpeed:
    """What a step would take on other devices."""

    devices: dict[str, int]  # by type
    step_seconds: float
    deviation_seconds: float  # standard deviation of that prediction


@dataclass(frozen=True, slots=True)
class SpeedView:
    """What a manager knows of a job's speed, and from where. Of *unseen* types nothing is known: like the others."""

    source: str
    unseen: list[str]
    measured: list[MeasuredSpeed]
    predicted: list[PredictedSpeed]


@dataclass(frozen=True, slots=True)
class JobDetails:
    """What is shown of one job beside its view. A job without a manager has neither launches nor terms."""

    description: JobDescription
    folder: str  # that its script runs in
    interpreter: str
    events: Sequence[Any]  # the notable ones of its stream
    workers: Sequence[Any] = ()
    failure: str | None = None
    launches: int = 0
    terms: JobTerms | None = None
    memory: MemoryNeeds | None = None
    cells: Sequence[Sequence[str]] = ()  # of a model in stages: for each, the device of each virtual node
    shadows: Sequence[Sequence[str]] = ()  # for each stage, the devices that hold it besides
    notice: str = ""  # that it has ended: "sent", or why it could not be delivered
    speed: SpeedView | None = None  # known to managers only

    def with_view(self, view: JobView) -> dict[str, Any]:
        """All of it as JSON."""
        details: dict[str, Any] = msgspec.to_builtins(self)
        return view.to_json() | details
