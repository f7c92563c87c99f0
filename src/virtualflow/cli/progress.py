"""A live progress bar, drawn from a job's event stream."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from virtualflow.cli.screen import screen
from virtualflow.core.wording import counted
from virtualflow.events import EpochStarted, EventReader, RunStarted, StepDone, StepTotal, StreamEvent
from virtualflow.job.output import Lines


class ProgressBar(Lines):
    """Follows an event stream; what the lead worker prints appears above the bar."""

    def __init__(self, stream: Path) -> None:
        super().__init__()
        self._reader = EventReader(stream)
        self._next_look = 0.0
        self._task: TaskID | None = None
        self._total = StepTotal()
        self._waves = self._devices = 0
        self._examples_per_second = 0.0
        self._bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[facts]}", markup=False),
            TimeRemainingColumn(),
            console=screen(),
        )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # the terminal may be closed by now
            self.close()
            self._next_look = 0.0
            self.refresh()
            self._bar.stop()

    def line(self, device: str, stream: str, text: bytes, *, lead: bool) -> None:
        """Print a line above the bar."""
        if lead:
            self._bar.console.print(Text(text.decode(errors="replace")))

    def refresh(self) -> None:
        """Show what was written since the last look, a few times a second."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + 0.1
        for _, event in self._reader.read():
            self._show(event)

    def _show(self, event: StreamEvent) -> None:
        self._total.add(event)
        if isinstance(event, RunStarted):
            self._waves, self._devices = event.waves, len(event.devices)
        elif isinstance(event, EpochStarted) and self._task is None:
            done = event.epoch * event.steps + event.first_step
            self._task = self._bar.add_task(counted(self._devices, "device"), completed=done, facts="")
        elif isinstance(event, StepDone) and self._task is not None:
            speed = event.examples / max(event.seconds, 1e-9)
            self._examples_per_second = 0.9 * (self._examples_per_second or speed) + 0.1 * speed
            metrics = "".join(f"  {name} {value:.4g}" for name, value in event.metrics.items())
            speed_now = f"{self._examples_per_second:,.0f} examples/s  {counted(self._waves, 'wave')}"
            facts = f"loss {event.loss:.4f}{metrics}  {speed_now}"
            self._bar.update(self._task, completed=event.step + 1, facts=facts)
        if self._task is not None:
            self._bar.update(self._task, total=self._total.steps)
