"""The one reader of event streams. A damaged line is skipped, counted, and reported once."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from virtualflow.errors import EventStreamError
from virtualflow.events.event_types import Loaded, RunStarted, StepDone, StreamEvent, decode
from virtualflow.events.lines import LineReader, newest_first

STREAM = "events.jsonl"

_logger = logging.getLogger(__name__)


class EventReader:
    """Reads the stream at *path* as it grows: each call of ``read`` costs only what is new.

    ``damaged`` counts the lines that were skipped: what a kill has cut off, or another version wrote. A last line
    without an end is not among them; it may still be being written.
    """

    def __init__(self, path: Path) -> None:
        self._lines = LineReader(path)
        self.damaged = 0

    def read(self) -> Iterator[tuple[float, StreamEvent]]:
        """The events since the last time, each with the time at which it was written; none without a stream."""
        lines = self._lines.read()
        while True:
            try:
                line = next(lines)
            except (StopIteration, OSError):
                return
            if (timed := self._decoded(line)) is not None:
                yield timed

    def _decoded(self, line: bytes) -> tuple[float, StreamEvent] | None:
        timed = decode(line)
        if timed is None and line.strip():
            self.damaged += 1
            _report_damage(self._lines.path)
        return timed


def read_events(path: Path) -> Iterator[StreamEvent]:
    """The events of a stream, in order."""
    return (event for _, event in read_timed_events(path))


def read_timed_events(path: Path) -> Iterator[tuple[float, StreamEvent]]:
    """The events of a stream, each with the time at which it was written."""
    with _readable(path):
        path.open("rb").close()
    return EventReader(path).read()


def read_newest_first(path: Path) -> Iterator[tuple[float, StreamEvent]]:
    """The events of a stream from its end on, each with its time: the last few cost the same at any length."""
    with _readable(path):
        for line in newest_first(path):
            if (timed := decode(line)) is not None:
                yield timed
            elif line.strip():
                _report_damage(path)


def last_step(path: Path) -> int:
    """The last step that the stream's present run has recorded; -1 for none."""
    if not path.exists():
        return -1
    for _, event in read_newest_first(path):
        if isinstance(event, StepDone):
            return event.step
        if isinstance(event, Loaded):
            return event.step - 1
        if isinstance(event, RunStarted):
            return -1
    return -1


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EventStreamError(f"cannot read the event stream {path}: {error.strerror}") from error


@functools.lru_cache(maxsize=1024)
def _report_damage(path: Path) -> None:
    """Log it, once for each stream."""
    _logger.warning("%s has damaged lines, which are skipped: a writer was killed, or the disk was full", path)
