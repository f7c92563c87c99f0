"""How long a job will take, as its owner says and as its steps show. For policies that care."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from virtualflow.cluster.throughput.learnt import StepModel
from virtualflow.core.job_view import DeviceUse
from virtualflow.core.memory_needs import MemoryNeeds
from virtualflow.job.history import Watch
from virtualflow.manager.record import Record

UNKNOWN_SECONDS = 3600.0  # what policies assume of a job's length until more is known
SCALE = 1.1  # an estimate that changes by less is not worth a decision
TURN_SECONDS = 5.0  # between two looks at how long a job will take
TURNS, PART = 16, 32  # how many jobs a tick has time to look at: TURNS, or one in PART of the jobs if that is more


class EstimateTurns:
    """Whose estimate is looked at when: of jobs that began together, not all in one tick.

    Each look may lead to a decision of the scheduler.
    """

    def __init__(self) -> None:
        self._looked_at: dict[str, float] = {}

    def take(self, job_ids: Sequence[str], now: float) -> list[str]:
        """Those of *job_ids* that have waited the longest, if that is long enough. Their turn is over with that."""
        due = [job_id for job_id in job_ids if now - self._looked_at.get(job_id, -math.inf) >= TURN_SECONDS]
        due.sort(key=lambda job_id: self._looked_at.get(job_id, -math.inf))
        taken = due[: max(TURNS, len(job_ids) // PART)]
        self._looked_at |= dict.fromkeys(taken, now)
        return taken

    def forget(self, job_id: str) -> None:
        self._looked_at.pop(job_id, None)


def expected_seconds(record: Record) -> float:
    """On its full demand."""
    return record.terms.expect_seconds or UNKNOWN_SECONDS


def new_estimate(record: Record, watch: Watch, model: StepModel | None = None) -> float | None:
    """How long it takes on its full demand; None if that is nothing new.

    Where nothing was learnt of its speed yet, twice the devices are taken to be twice as fast.
    """
    if watch.steps is None or watch.step_seconds is None or not watch.devices:
        return None
    step_seconds = watch.step_seconds * watch.devices / record.max_devices
    if model is not None and model.measured:
        step_seconds = model.fastest(record.max_devices)
    seconds = max(1.0, watch.steps * step_seconds)
    known = expected_seconds(record)
    return None if known / SCALE < seconds < known * SCALE else seconds


def measured_memory(watch: Watch, uses: Mapping[str, DeviceUse]) -> MemoryNeeds | None:
    """What the stages of a job take, once all of them have been measured. Activations are not among it."""
    sizes: dict[int, int] = {}
    for use in uses.values():
        sizes |= use.stage_sizes
    if watch.cells is None or len(sizes) < watch.cells.stages:
        return None
    return MemoryNeeds(tuple(sizes[stage] for stage in range(watch.cells.stages)), copies=watch.copies)


def done_seconds(record: Record, watch: Watch | None) -> float:
    """Seconds of its expected time that a job has behind it."""
    if watch is None or not watch.steps:
        return 0.0
    return expected_seconds(record) * min(1.0, watch.step / watch.steps)
