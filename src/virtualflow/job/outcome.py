"""How a job ends: what is known of that while it runs, and the outcome."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field

from virtualflow.core.job_state import JobState
from virtualflow.errors import CheckpointError
from virtualflow.job.spec import LATE, LOST, Failure


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """How a job ended: the exit code, and what went wrong if something did."""

    code: int
    failure: Failure | None = None
    was_interrupted: bool = False  # by a signal, whose exit code it has then


@dataclass(slots=True)
class Ending:
    """What a coordinator knows of its job's end. The first outcome counts."""

    checkpoint_is_damaged: Callable[[], bool]  # the one that the job began from
    outcome: JobOutcome | None = None
    is_stopping: bool = False
    was_asked_for: bool = False  # by a verb
    preempted: set[str] = field(default_factory=set)  # devices whose workers got a preemption notice
    _lost_code: int = 1
    _lost_text: str = ""  # why the last worker was lost

    def end(self, outcome: JobOutcome) -> None:
        """The job ends like this, unless it has ended already."""
        self.outcome = self.outcome or outcome

    def fail(self, cause: str, text: str, device: str = "") -> None:
        """The job ends with an error of this *cause*."""
        self.end(JobOutcome(1, Failure(device, cause, text)))

    def note_loss(self, device: str, code: int) -> None:
        """A worker was lost, with exit code 0 or by the signal of a negative *code*."""
        self._lost_code = 128 - code if code else 1
        self._lost_text = signal_advice(device, -code) if code else ""

    def abandon(self, reason: str) -> None:
        """The job ends because workers were lost."""
        self.end(JobOutcome(self._lost_code, Failure("", LOST, f"{self._lost_text}{reason}\n")))

    @property
    def is_over(self) -> bool:
        return self.outcome is not None

    @property
    def failure(self) -> Failure | None:
        return self.outcome.failure if self.outcome is not None else None

    @property
    def state(self) -> JobState | None:
        """None until the job has ended."""
        if self.outcome is None:
            return None
        if self.outcome.code:
            return JobState.FAILED
        return JobState.CANCELLED if self.is_stopping else JobState.DONE

    @property
    def reason(self) -> str:
        """The last line of what went wrong."""
        lines = self.failure.text.strip().splitlines() if self.failure is not None else []
        return lines[-1] if lines else ""

    @property
    def was_stopped(self) -> bool:
        """Whether the job has ended because that was wanted, not by itself."""
        return self.is_stopping and (self.failure is None or self.failure.cause == LATE)

    @property
    def was_preempted(self) -> bool:
        """Whether it was stopped because all of its workers got a preemption notice."""
        return self.was_stopped and bool(self.preempted) and not self.was_asked_for

    @property
    def is_no_fault_of_the_script(self) -> bool:
        """Whether the job may go on from its last checkpoint: workers were killed, or a disk is full or failing."""
        if self.failure is None:
            return False
        if self.failure.cause == CheckpointError.__name__:
            return self.is_stopping or self.checkpoint_is_damaged()
        return self.failure.cause in (LOST, LATE)


def signal_name(number: int) -> str:
    """What ended a worker; 0 is no signal."""
    if not number:
        return "it ended by itself"
    known = number in set(signal.Signals)  # realtime signals have no names here
    return signal.Signals(number).name if known else f"signal {number}"


def signal_advice(device: str, number: int) -> str:
    """What may have killed a worker by the signal of this number."""
    text = f"the worker of device {device} was killed by {signal_name(number)}."
    if number == signal.SIGKILL:
        text += (
            " If that was not done by hand, the machine ran out of memory: use more virtual nodes (each is then "
            "smaller) or fewer devices on this machine."
        )
    return text + "\n"
