"""When a job will end, and whether that is in time for its deadline."""

from __future__ import annotations

from dataclasses import dataclass

from virtualflow.core.job_state import JobState
from virtualflow.job.history import Watch
from virtualflow.manager import estimates
from virtualflow.manager.record import Record
from virtualflow.manager.scheduling import START_SECONDS


@dataclass(frozen=True, slots=True)
class Outlook:
    """*ends*: when, as far as is known; for a job that waits, at the earliest. *late* is None while that is open."""

    text: str
    ends: float | None = None
    late: bool | None = None


def forecast(record: Record, watch: Watch | None, eta_seconds: float | None, now: float) -> Outlook | None:
    """None for a job without a deadline. *eta_seconds*: of one that runs, at its present speed."""
    by = record.terms.by
    if by is None:
        return None
    if record.ended is not None:
        if record.state != JobState.DONE:
            return Outlook("not met: the job has not come to its end", late=True)
        late = record.ended > by
        return Outlook(f"{'missed' if late else 'met'} by {_length(record.ended - by)}", record.ended, late)
    if eta_seconds is not None and record.state == JobState.RUNNING:
        late = now + eta_seconds > by
        difference = _length(now + eta_seconds - by)
        text = f"will be missed by {difference} at the present speed" if late else f"will be met, {difference} early"
        return Outlook(text, now + eta_seconds, late)
    if record.terms.expect_seconds is None:
        text = (
            "already missed" if now > by else "nothing is known of the job's length: give --expect, or wait for steps"
        )
        return Outlook(text, late=True if now > by else None)
    left = max(0.0, record.terms.expect_seconds - estimates.done_seconds(record, watch))
    earliest = now + START_SECONDS + left
    if earliest > by:
        return Outlook(f"will be missed by {_length(earliest - by)}, or more if it does not start now", earliest, True)
    return Outlook(f"will be met if it has all its devices within {_length(by - earliest)}", earliest)


def _length(seconds: float) -> str:
    """As ``2 h 5 min`` or ``40 s``."""
    whole = round(abs(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes = whole // 60
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
