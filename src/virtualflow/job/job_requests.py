"""What is asked of a running job: other devices or an end, by a verb, a signal, or the audit."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Sequence
from typing import assert_never

from virtualflow.core import roster_events as on
from virtualflow.core.devices import check_names
from virtualflow.core.roster import Roster
from virtualflow.core.wording import listed
from virtualflow.errors import LaunchError, VirtualFlowError
from virtualflow.job import exchange
from virtualflow.job import wire_messages as messages
from virtualflow.job.backend import Backend
from virtualflow.job.balancing import Balancing
from virtualflow.job.exchange import Exchange
from virtualflow.job.folder import JobSpec
from virtualflow.job.outcome import Ending, JobOutcome
from virtualflow.job.spec import LATE
from virtualflow.job.starting import Starting
from virtualflow.job.verdict_reports import VerdictReports
from virtualflow.job.wire_messages import JobRequest

NOTICES = {signal.SIGINT: "\nstopping with a checkpoint; Ctrl-C again stops at once"}
NOTICE = "got a signal to end: stopping with a checkpoint"
LATE_STOP = "the workers did not reach a step boundary in time, so the job was stopped without a new checkpoint\n"


class JobRequests:
    """Checks what is asked for, and has the roster *handle* it. *show* prints a line where the job was started."""

    def __init__(
        self,
        job: JobSpec,
        backend: Backend,
        roster: Roster,
        balancing: Balancing,
        starting: Starting,
        exchange: Exchange,
        ending: Ending,
        verdicts: VerdictReports,
        handle: Callable[[on.RosterEvent], None],
        show: Callable[[str], None],
    ) -> None:
        self._job = job
        self._backend = backend
        self._roster = roster
        self._balancing = balancing
        self._starting = starting
        self._exchange = exchange
        self._ending = ending
        self._verdicts = verdicts
        self._handle = handle
        self._show = show
        self._signal_notice = ""  # the text for the user, once a signal has come
        self._stop_before = math.inf

    def take(self, request: JobRequest) -> None:
        """Do what a verb asks for. Raises VirtualFlowError if that can't be done."""
        match request:
            case messages.ResizeJob(devices):
                self.resize(devices)
            case messages.MoveJob(names):
                self.move(names)
            case messages.StopJob(checkpoint):
                self._ending.was_asked_for = True
                self.stop(checkpoint=checkpoint)
            case messages.GetStatus():
                pass
            case _:
                assert_never(request)

    def move(self, devices: Sequence[str]) -> None:
        """Go on with just these devices."""
        if self._ending.is_stopping:
            raise LaunchError("the job is being stopped")
        if drained := [device for device in devices if device in self._verdicts.drained]:
            raise LaunchError(
                f"{listed('device', drained)} computed wrongly, and the sentinel has drained it: use other devices. "
                "`vf status` says what was found"
            )
        started_here = [device for device in devices if device not in self._roster.guests]
        check_names(started_here)
        self._backend.check(started_here)
        if not set(devices) <= set(self._roster.generation.devices):
            self._starting.check_files()
        self._handle(on.ResizeWanted(tuple(devices)))
        self._ending.preempted -= set(devices)

    def resize(self, count: int) -> None:
        """Go on with *count* devices: the present ones first, then new ones."""
        if count < 1:
            raise LaunchError(f"a job needs at least one device, not {count}")
        present = self._roster.generation.devices
        known = [device for device in self._job.devices if device not in present]
        more = [str(n) for n in range(4096) if str(n) not in (*present, *known)] if not self._balancing.typed else []
        names = [name for name in (*present, *known, *more) if name not in self._verdicts.drained]
        if count > len(names):
            raise LaunchError(f"the job was given {len(names)} devices, so it can't grow to {count}")
        self.move(names[:count])

    def stop(self, *, checkpoint: bool) -> None:
        """End the job, with a checkpoint to go on from if one is wanted."""
        self._ending.is_stopping = True
        if checkpoint and self._roster.mapping is not None:
            self._stop_before = time.monotonic() + 2 * self._job.patience_seconds
            self._handle(on.StopWanted())
        else:
            self._ending.end(JobOutcome(0))

    def notice(self, signal_number: int) -> bool:
        """Stop with a checkpoint, soon; return whether there is something to save."""
        if not self._ending.is_over and (self._roster.mapping is None or not self._job.resumable):
            return False
        self._signal_notice = NOTICES.get(signal.Signals(signal_number), NOTICE)
        return True

    def follow_up(self, now: float) -> None:
        """Do what was asked for before, and is due *now*."""
        if self._exchange.is_planned and self._roster.is_settled and not self._ending.is_stopping:
            self._go_on_exchanging()
        self._act_on_signal()
        if now > self._stop_before:
            self._ending.fail(LATE, LATE_STOP)

    def _go_on_exchanging(self) -> None:
        try:
            self.move(self._exchange.next_move())
        except VirtualFlowError as error:  # joining is closed by now, or a file has changed: the job itself goes on
            self._exchange.give_up()
            self._show(f"{exchange.GIVEN_UP}: {error}")

    def _act_on_signal(self) -> None:
        if not self._signal_notice or self._ending.is_over:
            return
        self._show(self._signal_notice)
        self._signal_notice = ""
        if not self._ending.is_stopping:
            self.stop(checkpoint=True)
