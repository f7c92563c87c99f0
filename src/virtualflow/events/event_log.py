"""The one writer of event streams."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from virtualflow.events.event_reader import STREAM, last_step
from virtualflow.events.event_types import StepDone, StreamEvent, encode
from virtualflow.events.lines import LineWriter

KEPT_STEPS = 256
Follower = Callable[[float, StreamEvent], None]  # called by the lead with what it has recorded, and when


def stream_of(folder: Path, trainer: int) -> Path:
    """Where a job's Trainer of that number writes: 1 for the first."""
    return folder / (STREAM if trainer == 1 else f"events-{trainer}.jsonl")


def streams_in(folder: Path) -> list[Path]:
    """The streams of all Trainers of a job, in their order."""
    return list(itertools.takewhile(Path.is_file, (stream_of(folder, number) for number in itertools.count(1))))


class EventLog:
    """Appends to a job's stream on the lead worker; a new lead goes on where the last one stopped."""

    def __init__(self, path: Path, is_lead: Callable[[], bool], followers: Sequence[Follower] = ()) -> None:
        self.path = path
        self._followers = followers
        self._is_lead = is_lead
        self._writer: LineWriter | None = None
        self._unwritten: deque[StepDone] = deque(maxlen=KEPT_STEPS)  # the last steps of a worker that is not the lead

    def write(self, event: StreamEvent) -> None:
        """Record *event*, if this worker is the lead."""
        if not self._is_lead():
            if isinstance(event, StepDone):
                self._unwritten.append(event)
            return
        if self._writer is None or self._unwritten:
            last = self._take_over()
            if isinstance(event, StepDone) and event.step <= last:
                return  # made again, by a worker that could not know that it was recorded
        self._append(event)

    def _take_over(self) -> int:
        """Record the steps that the last lead could not; return the last one that it did."""
        if self._writer is None:
            self._writer = LineWriter(self.path)
        else:
            self._writer.begin_line()
        # The last lead may have died between committing a step and recording it, or with a machine that sent it late.
        last = last_step(self.path)
        for unwritten in self._unwritten:
            if unwritten.step > last:
                self._append(unwritten)
        self._unwritten.clear()
        return last

    def _append(self, event: StreamEvent) -> None:
        assert self._writer is not None
        now = time.time()
        self._writer.append(encode(event, now) + b"\n")
        for follow in self._followers:
            follow(now, event)
