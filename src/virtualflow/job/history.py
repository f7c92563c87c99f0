"""A job's event stream, read as it grows: where the job stands, and how it got there."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from virtualflow.core.cells import Cells
from virtualflow.core.job_view import Progress
from virtualflow.core.step_times import StepTimes
from virtualflow.core.wording import counted
from virtualflow.events import (
    CorruptionFound,
    Evaluated,
    EventReader,
    Loaded,
    Regrouped,
    RunStarted,
    Saved,
    StepDone,
    StepTotal,
    StreamEvent,
)

MAX_SAMPLES = 600  # beyond twice that, every other one is dropped
CHANGES = 5  # of membership, that are shown
PACE_STEPS = 20  # over which the present speed is taken


@dataclass(frozen=True, slots=True)
class Sample:
    """One step, as charts show it; or a gap, after which the job did not run for a while."""

    time: float
    step: int
    loss: float | None  # None where it is not finite: JSON has no word for that
    examples_per_second: float | None  # None in a gap
    devices: int


@dataclass(slots=True)
class Watch:
    """What the stream at *path* has recorded so far. ``read`` costs only what is new."""

    path: Path
    step: int = 0  # committed steps
    loss: float | None = None
    examples_per_second: float | None = None
    step_seconds: float | None = None
    devices: int = 0
    examples: int | None = None  # of the largest step
    times: StepTimes = field(default_factory=StepTimes)
    samples: list[Sample] = field(default_factory=list)
    notable: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=200))
    metrics: dict[str, list[tuple[float, int, float]]] = field(default_factory=dict)  # by name: time, step and value
    changes: deque[Regrouped] = field(default_factory=lambda: deque(maxlen=CHANGES))  # the last ones
    pauses_ms: list[float] = field(default_factory=list)
    shapes: list[tuple[float, tuple[str, ...]]] = field(
        default_factory=list
    )  # the devices from a time on; none: stopped
    corruption: list[str] = field(default_factory=list)  # that a sentinel has found, in words
    last_time: float | None = None  # of the newest event
    cells: Cells | None = None  # of a model in stages: who runs and holds what, since its last start or change
    copies: int = 1  # on how many devices each stage is to be kept
    _every: int = 1  # every how many steps there is a sample
    _recent: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=PACE_STEPS))
    _total: StepTotal = field(default_factory=StepTotal)
    _reader: EventReader = field(init=False)

    def __post_init__(self) -> None:
        self._reader = EventReader(self.path)

    def read(self) -> None:
        """Take in what was written since the last time."""
        for time, event in self._reader.read():
            self.add(time, event)
            self.last_time = time

    def add(self, time: float, event: StreamEvent) -> None:
        """Take in what happened at *time*."""
        self._total.add(event)
        if isinstance(event, StepDone):
            self._note_step(time, event)
        elif isinstance(event, Regrouped):
            self._note_devices(time, event)
            self.changes.append(event)
            pause_ms = {part: ms for part, ms in event.pause_ms.items() if math.isfinite(ms)}
            self.pauses_ms.append(sum(pause_ms.values()))
            text = f"{event.cause}: {counted(len(event.devices), 'device')}, {' '.join(event.devices)}"
            self._note_text(time, event.step, text, pause_ms)
        elif isinstance(event, Evaluated):
            self._note_metric(time, event.step, event.name, event.value)
            self._note_text(time, event.step, f"{event.name}: {event.value:.4g}")
        elif isinstance(event, Saved):
            self._note_text(time, event.step, f"saved {Path(event.path).name}")
        elif isinstance(event, Loaded):
            self._recent.clear()
            self._note_text(time, event.step, f"went on from {Path(event.path).name}")
        elif isinstance(event, CorruptionFound):
            self.corruption.append(f"step {event.step}: {event.text}")
            self._note_text(time, event.step, f"sentinel: {event.text}")
        elif isinstance(event, RunStarted):
            self._note_start(time, event)

    def _note_start(self, time: float, event: RunStarted) -> None:
        """The job starts, or goes on after it was stopped: since its last event, it had no device."""
        if self.last_time is not None:
            self.shapes.append((self.last_time, ()))
            self.samples.append(Sample(self.last_time, self.step, None, None, 0))
        self.copies = event.copies
        self._note_devices(time, event)

    def _note_devices(self, time: float, event: RunStarted | Regrouped) -> None:
        self.devices = len(event.devices)
        self.cells = Cells.of_rows(event.cells, event.shadows) if event.cells else None
        self.times.change(event.mapping)
        self._recent.clear()
        self.shapes.append((time, tuple(event.devices)))

    def _note_step(self, time: float, event: StepDone) -> None:
        self.step, self.loss = event.step + 1, event.loss if math.isfinite(event.loss) else None
        if math.isfinite(event.seconds):
            self._note_time(event)
            self._recent.append((event.examples, event.seconds))
            examples, lengths = zip(*self._recent, strict=True)
            seconds = max(sum(lengths), 1e-9)
            self.step_seconds = seconds / len(lengths)
            self.examples_per_second = round(sum(examples) / seconds, 1)
        if event.step % self._every == 0:
            for name, value in event.metrics.items():
                self._note_metric(time, self.step, name, value)
            self.samples.append(Sample(time, self.step, self.loss, self.examples_per_second, self.devices))
        if len(self.samples) > 2 * MAX_SAMPLES:
            kept = enumerate(self.samples)
            self.samples = [sample for place, sample in kept if place % 2 == 0 or sample.examples_per_second is None]
            self._every *= 2

    def _note_time(self, event: StepDone) -> None:
        """A short last batch takes less, and says nothing of the others."""
        self.examples = max(self.examples or 0, event.examples)
        if event.examples == self.examples:
            self.times.note(event.seconds)

    def _note_metric(self, time: float, step: int, name: str, value: float) -> None:
        if math.isfinite(value):
            points = self.metrics.setdefault(name, [])
            points.append((time, step, value))
            if len(points) > 2 * MAX_SAMPLES:
                del points[1::2]

    def _note_text(self, time: float, step: int, text: str, pause_ms: dict[str, float] | None = None) -> None:
        total = round(sum(pause_ms.values()), 1) if pause_ms is not None else None
        event = {"time": time, "step": step, "text": text, "pause_ms": pause_ms, "total_pause_ms": total}
        self.notable.append(event)

    @property
    def steps(self) -> int | None:
        """Of the whole job, as far as its script has announced them."""
        return self._total.steps

    def progress(self, *, running: bool) -> Progress:
        """How far the job is; one that does not run has no speed."""
        return Progress(
            step=self.step,
            steps=self.steps,
            loss=self.loss,
            examples_per_second=self.examples_per_second if running else None,
            eta_seconds=self.seconds_left if running else None,
            metrics={name: points[-1][2] for name, points in self.metrics.items()},
        )

    @property
    def seconds_left(self) -> float | None:
        """At the present speed, if the script has announced how many steps there are."""
        if self.steps is None or self.step_seconds is None:
            return None
        return max(0, self.steps - self.step) * self.step_seconds
