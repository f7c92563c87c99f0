"""Ending a job whose coordinator no longer answers: that is asked, then killed, and so is what still holds its lock."""

from __future__ import annotations

import logging
import os
import signal

from virtualflow.job import lock_holders
from virtualflow.job.folder import JobFolder

SERVE = "virtualflow.job.serve"  # in a coordinator's command line
STEPS = ((signal.SIGTERM, False), (signal.SIGKILL, False), (signal.SIGKILL, True))  # and whether all are meant
SUCCESSOR_SECONDS = 60.0  # at least, for a coordinator that takes over to answer

_log = logging.getLogger(__name__)


class Escalation:
    """One step each *patience_seconds*: SIGTERM, SIGKILL, and SIGKILL for all that is left.

    If a coordinator is killed, another one takes over. It gets time to answer; if it does not, all begins again. Where
    none can be had, the workers finish their step, write a checkpoint and end.
    """

    def __init__(self, folder: JobFolder, patience_seconds: float) -> None:
        self._folder = folder
        self._patience_seconds = patience_seconds
        self._steps = list(STEPS)
        self._next = 0.0
        self._met: set[int] = set()  # coordinators that got a signal

    def go_on(self, now: float) -> None:
        """Take the next step if it is due."""
        if now < self._next:
            return
        holders = [pid for pid in lock_holders.holders(self._folder.lock) if pid != os.getpid()]
        coordinators = {pid for pid in holders if SERVE in lock_holders.command_line_of(pid)}
        if len(self._steps) == 1 and coordinators - self._met:
            self._steps = list(STEPS)
            self._next = now + max(4 * self._patience_seconds, SUCCESSOR_SECONDS)
            return
        self._met |= coordinators
        number, everybody = self._steps.pop(0) if len(self._steps) > 1 else self._steps[0]
        self._next = now + self._patience_seconds * (2 if number == signal.SIGKILL else 1)
        for pid in holders:
            meant = everybody or pid in coordinators
            if meant and lock_holders.send(pid, self._folder.lock, number):
                who = "what is left of it" if everybody else "its coordinator"
                name = signal.Signals(number).name
                _log.warning("job %s does not answer: %s to %s, process %d", self._folder.path.name, name, who, pid)
