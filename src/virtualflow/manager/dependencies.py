"""Jobs that follow others: which of those a job still waits for, and whether one of them can't be followed any more."""

from __future__ import annotations

from dataclasses import dataclass

from virtualflow.core.job_state import JobState
from virtualflow.manager.record import Record
from virtualflow.manager.records import Records


@dataclass(frozen=True, slots=True)
class Dependencies:
    """*awaited* are not done yet; *ended* is the first that ended in another way than well."""

    awaited: tuple[str, ...]
    ended: Record | None

    @classmethod
    def of(cls, record: Record, records: Records) -> Dependencies:
        """A job of which there is no record counts as not done: unknown is not ended."""
        followed = {job_id: records.find(job_id) for job_id in record.terms.after}
        awaited = tuple(job_id for job_id, other in followed.items() if other is None or other.state != JobState.DONE)
        ended = (other for other in followed.values() if other is not None and other.is_over)
        return cls(awaited, next((other for other in ended if other.state != JobState.DONE), None))

    @property
    def why_not(self) -> str:
        """Why the job can't run any more; empty if it can."""
        if self.ended is None:
            return ""
        return (
            f"job {self.ended.id} ({self.ended.name}) has {_HOW[self.ended.state]}, and this one was to start after it"
        )


_HOW = {JobState.FAILED: "failed", JobState.CANCELLED: "been cancelled"}


def why_waiting(record: Record, records: Records) -> str:
    """In words; empty if the job follows none that is not done."""
    awaited = [
        f"{job_id} ({records[job_id].name}, {records[job_id].state})" if job_id in records else f"{job_id} (no record)"
        for job_id in Dependencies.of(record, records).awaited
    ]
    return f"it starts after {', '.join(awaited)}" if awaited else ""
