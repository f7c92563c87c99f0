"""The states of a job, as its coordinator, the manager and every reader name them."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """Where a job stands. The value is what stands in its ``state.json`` and on the wire."""

    QUEUED = "QUEUED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RESIZING = "RESIZING"
    PAUSED = "PAUSED"
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    UNKNOWN = "UNKNOWN"  # the state can't be read, so nothing is done about it

    @property
    def is_ended(self) -> bool:
        """Whether the job will never run again."""
        return self in ENDED

    @property
    def is_at_rest(self) -> bool:
        """Whether no coordinator runs the job."""
        return self in AT_REST


ENDED = frozenset({JobState.DONE, JobState.FAILED, JobState.CANCELLED})
AT_REST = ENDED | {JobState.QUEUED, JobState.PAUSED}
