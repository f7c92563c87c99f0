"""How a job's record changes: ``(record, event) -> (record, effects)``. Reads no clock, does no I/O.

The manager saves the record first and carries the effects out then. If it dies in between, the next one reads from the
record what was meant.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from virtualflow.core.job_state import JobState
from virtualflow.errors import ManagerError
from virtualflow.manager.record import Record, Wish

MAX_CRASHES = 5  # of a job's coordinator, in a row, without a step between them


class HowEnded(StrEnum):
    """How a job's coordinator and workers came to be gone."""

    DONE = "done"
    FAILED = "failed"  # by its script
    STOPPED = "stopped"  # on request
    CRASHED = "crashed"  # through no fault of the script
    NOT_LAUNCHED = "not launched"
    UNCLEAR = "unclear"  # its files do not show how: its owner has to decide


@dataclass(frozen=True, slots=True)
class PauseRequested:
    now: float


@dataclass(frozen=True, slots=True)
class ResumeRequested:
    now: float


@dataclass(frozen=True, slots=True)
class CancelRequested:
    now: float


@dataclass(frozen=True, slots=True)
class DependencyEnded:
    """A job that it was to follow has ended, and not well: *text* says which, and how."""

    now: float
    text: str


@dataclass(frozen=True, slots=True)
class ShutdownRequested:
    """The manager is about to end, and its jobs stop until the next one starts."""


@dataclass(frozen=True, slots=True)
class ManagerReplaced:
    """A new manager has found the record."""


@dataclass(frozen=True, slots=True)
class DevicesWithdrawn:
    """Other jobs are to have all of its devices."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A coordinator is about to start, for the launch with *token*."""

    token: str
    now: float


@dataclass(frozen=True, slots=True)
class CoordinatorFound:
    """The job already has a coordinator, which this manager has not started."""

    now: float


@dataclass(frozen=True, slots=True)
class Ended:
    """The coordinator and all workers are gone. *step* is how far the job has come."""

    how: HowEnded
    now: float
    step: int = 0
    text: str = ""


LifecycleEvent = (
    PauseRequested
    | ResumeRequested
    | CancelRequested
    | DependencyEnded
    | ShutdownRequested
    | ManagerReplaced
    | DevicesWithdrawn
    | Launched
    | CoordinatorFound
    | Ended
)


class Effect(StrEnum):
    """What the manager does once the record is saved."""

    ENTER_SCHEDULER = "enter scheduler"  # the job waits for devices
    LEAVE_SCHEDULER = "leave scheduler"  # the job needs none
    WRITE_STATE = "write state"  # into the job's folder, for those who look there
    ERASE_VARIABLES = "erase variables"  # the job is over, and its secrets go


Step = tuple[Record, tuple[Effect, ...]]
REST = (Effect.WRITE_STATE,)
ON_END = (Effect.ERASE_VARIABLES, Effect.WRITE_STATE, Effect.LEAVE_SCHEDULER)


def after(record: Record, event: LifecycleEvent) -> Step:
    """The record after *event*, and what is to be done then. Raises ManagerError if that can't be asked for now."""
    match event:
        case PauseRequested(now):
            return _paused(record, now)
        case ResumeRequested(now):
            return _resumed(record, now)
        case CancelRequested(now):
            return _cancelled(record, now)
        case DependencyEnded(now, text):
            return replace(_over(record, JobState.CANCELLED, now), failure=text), ON_END
        case ShutdownRequested():
            return replace(record, wish=record.wish or Wish.DOWN), ()
        case ManagerReplaced():
            # That manager is gone, but may have asked the job to stop before.
            return replace(record, wish=Wish.SUSPEND if record.wish == Wish.DOWN else record.wish), ()
        case DevicesWithdrawn():
            return replace(record, wish=record.wish or Wish.SUSPEND), ()
        case Launched(token, now):
            return replace(_running(record, now), token=token, launches=record.launches + 1), ()
        case CoordinatorFound(now):
            return _running(record, now), ()
        case Ended():
            return _ended(record, event)


def run_seconds(record: Record, now: float) -> float:
    """How long it has run so far."""
    return record.run_seconds + (max(0.0, now - record.launched) if record.launched is not None else 0.0)


def _running(record: Record, now: float) -> Record:
    return replace(record, state=JobState.RUNNING, started=record.started or now, launched=now)


def _paused(record: Record, now: float) -> Step:
    if record.state == JobState.PAUSED or record.wish == Wish.PAUSE:
        return record, ()
    idle = _without_devices(record)
    if record.state == JobState.RUNNING:
        return replace(idle, wish=Wish.PAUSE), (Effect.LEAVE_SCHEDULER,)
    return _at_rest(idle, JobState.PAUSED, now), (*REST, Effect.LEAVE_SCHEDULER)


def _resumed(record: Record, now: float) -> Step:
    if record.wish == Wish.PAUSE:  # it is about to stop, and goes on after that
        return replace(record, wish=Wish.SUSPEND), (Effect.ENTER_SCHEDULER,)
    if record.state == JobState.PAUSED:
        waiting = replace(_at_rest(record, JobState.QUEUED, now), trouble=None)
        return waiting, (*REST, Effect.ENTER_SCHEDULER)
    raise ManagerError(f"job {record.id} is not paused: its state is {record.state}")


def _cancelled(record: Record, now: float) -> Step:
    if record.state == JobState.RUNNING:
        return replace(_without_devices(record), wish=Wish.CANCEL), (Effect.LEAVE_SCHEDULER,)
    return _over(record, JobState.CANCELLED, now), ON_END


def _ended(record: Record, end: Ended) -> Step:
    record, text = replace(record, trouble=None), end.text
    beyond_help = False
    if end.how == HowEnded.CRASHED:  # it goes on from its last checkpoint
        crashes = record.crashes + 1 if end.step <= record.last_step else 1
        record = replace(record, crashes=crashes, last_step=end.step)
        text = f"{text}\nIt ended {crashes} times in a row without getting any further."
        beyond_help = crashes > MAX_CRASHES
    elif end.how == HowEnded.FAILED:
        record = replace(record, failed=record.failed + 1)
        beyond_help = record.failed > record.terms.retries
    if end.how == HowEnded.DONE:
        return _over(record, JobState.DONE, end.now), ON_END
    if record.wish == Wish.CANCEL or (end.how == HowEnded.STOPPED and record.wish is None):
        return _over(record, JobState.CANCELLED, end.now), ON_END
    if end.how == HowEnded.UNCLEAR:  # perhaps it was done
        trouble = f"{text}. `vf resume {record.id}` continues it from its last checkpoint"
        undecided = replace(_without_devices(record), trouble=trouble)
        return _at_rest(undecided, JobState.PAUSED, end.now), (*REST, Effect.LEAVE_SCHEDULER)
    if beyond_help:
        return replace(_over(record, JobState.FAILED, end.now), failure=text.strip()), ON_END
    # The scheduler knows why it does not run, or still counts on it.
    return _at_rest(record, JobState.PAUSED if record.wish == Wish.PAUSE else JobState.QUEUED, end.now), REST


def _without_devices(record: Record) -> Record:
    return replace(record, devices=(), beside=None)


def _at_rest(record: Record, state: JobState, now: float) -> Record:
    """It does not run, and is not over."""
    return replace(record, state=state, wish=None, run_seconds=run_seconds(record, now), launched=None)


def _over(record: Record, state: JobState, now: float) -> Record:
    return replace(_without_devices(_at_rest(record, state, now)), ended=now)
