"""From the event stream to a tool: one run for a job, even if its lead changes."""

from __future__ import annotations

import atexit
import logging
from pathlib import Path
from typing import Any, Protocol

from virtualflow.events import Evaluated, RunStarted, StepDone, StreamEvent, read_newest_first
from virtualflow.loggers.scalars_of_events import scalars

logger = logging.getLogger("virtualflow")
# Steps and evaluations that a new lead logs again, since a tool writes beside the training and dies with its process:
REPEATED = 20  # of them, and those of the last seconds
REPEATED_SECONDS = 2.0
MOST_REPEATED = 500


class Tool(Protocol):
    """Somewhere that numbers are looked at. One is made by the script on every worker; only the lead's is opened."""

    def open(self, run: str, facts: dict[str, Any]) -> None:
        """Begin the run of that name, or go on with it if there is one. *facts* are empty on a new lead."""

    def log(self, step: int, values: dict[str, float], time: float) -> None:
        """Record *values* by name, as of *time* in seconds since 1970."""

    def close(self) -> None: ...


class RunLogger:
    """Hands what the lead records on to a tool. A tool that fails is left alone, and ends no job."""

    def __init__(self, tool: Tool, run: str, stream: Path) -> None:
        self._tool = tool
        self._run = run
        self._stream = stream
        self._is_open = self._has_failed = False

    def __call__(self, time: float, event: StreamEvent) -> None:
        """Take in *event*, which was just recorded at *time*."""
        if self._has_failed:
            return
        try:
            if not self._is_open:
                self._open(event)
            step, values = scalars(event)
            if values:
                self._tool.log(step, values, time)
        except Exception as error:
            self._has_failed = True
            logger.warning("%s is left out from here on: %s", type(self._tool).__name__, error)

    def close(self) -> None:
        """This worker records nothing more."""
        if self._is_open and not self._has_failed:
            self._is_open = False
            try:
                self._tool.close()
            except Exception as error:
                logger.warning("%s could not be closed: %s", type(self._tool).__name__, error)

    def _open(self, event: StreamEvent) -> None:
        self._tool.open(self._run, event.facts if isinstance(event, RunStarted) else {})
        self._is_open = True
        # Now, so that it comes before what the tool itself does at the end: that may leave nothing to be closed.
        atexit.register(self.close)
        self._repeat_what_was_before(event)

    def _repeat_what_was_before(self, first: StreamEvent) -> None:
        """The last lead may have ended before its tool had written what it got; *first* is already recorded."""
        before: list[tuple[float, StreamEvent]] = []
        for time, event in read_newest_first(self._stream):
            if not isinstance(event, StepDone | Evaluated) or event == first:
                continue
            is_recent = len(before) < MOST_REPEATED and (not before or before[0][0] - time < REPEATED_SECONDS)
            if len(before) >= REPEATED and not is_recent:
                break
            before.append((time, event))
        for time, event in reversed(before):
            self._tool.log(*scalars(event), time)
