"""How long this device takes for its virtual nodes; on one that stands for another, the waiting that makes it so."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import torch

from virtualflow.core.cell_schedule import CellRun
from virtualflow.core.emulation import Emulated


class Pace:
    """Times the waves and updates of one worker, by its host's clock."""

    def __init__(self) -> None:
        self.overran = 0  # waves and updates of the current step that took longer than they should have
        self._seconds = self._begun = self._not_counted_seconds = 0.0

    def check(self, stages: int | None) -> None:
        """Raise ConfigError if it can't be kept for a model in this number of *stages*, or for one that is not cut."""

    @property
    def wave_seconds(self) -> float:
        """How long the waves of the current step took."""
        return self._seconds

    def begin_step(self) -> None:
        self._seconds, self.overran = 0.0, 0

    def begin(self) -> None:
        """A wave or an update begins."""
        self._begun, self._not_counted_seconds = time.perf_counter(), 0.0

    @contextlib.contextmanager
    def not_counted(self) -> Iterator[None]:
        """Part of the wave is spent waiting for others."""
        began = time.perf_counter()
        yield
        self._not_counted_seconds += time.perf_counter() - began

    def end_wave(self, node_size: int, step: int) -> None:
        """A wave of *node_size* examples ends, in that *step* of the job."""
        self._seconds += time.perf_counter() - self._begun - self._not_counted_seconds

    def begin_cell(self) -> None:
        """The run of a cell, or the update of a unit, begins: only what is emulated is timed."""

    def end_cell(self, run: CellRun, stages: int, node_size: int, step: int) -> None:
        """The *run* of a cell ends, before what it has made is handed on; the model has this number of *stages*."""

    def end_update(self, devices: int) -> None:
        """The update of a step on this number of *devices* ends."""

    def end_unit(self, unit: tuple[int, ...], stages: int) -> None:
        """The update of what the stages in *unit* use ends."""


class DevicePace(Pace):
    """The same by an accelerator's clock: the host is far ahead of it. Nothing is read before the step has ended."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._begin: torch.Event | None = None  # when the wave began
        self._spans: list[tuple[torch.Event, torch.Event]] = []
        self._waits: list[tuple[torch.Event, torch.Event]] = []

    @property
    def wave_seconds(self) -> float:
        return _elapsed(self._spans) - _elapsed(self._waits)

    def begin_step(self) -> None:
        super().begin_step()
        self._spans, self._waits = [], []

    def begin(self) -> None:
        self._begin = self._mark()

    @contextlib.contextmanager
    def not_counted(self) -> Iterator[None]:
        begin = self._mark()
        yield
        self._waits.append((begin, self._mark()))

    def end_wave(self, node_size: int, step: int) -> None:
        assert self._begin is not None
        self._spans.append((self._begin, self._mark()))

    def _mark(self) -> torch.Event:
        event = torch.Event(device=self._device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self._device))
        return event


def _elapsed(spans: list[tuple[torch.Event, torch.Event]]) -> float:
    # All of it is over by now: the step has read what came after it.
    return sum(begin.elapsed_time(end) for begin, end in spans) / 1000


class EmulatedPace(Pace):
    """The pace of another device: a wave waits until a deadline.

    One that overran it did not take the time it should have, which is counted: a measurement with such waves is void.
    """

    def __init__(self, emulated: Emulated) -> None:
        super().__init__()
        self._emulated = emulated
        self._processor_seconds = 0.0  # of this thread, when the wave began

    def check(self, stages: int | None) -> None:
        self._emulated.check(stages)

    def begin(self) -> None:
        super().begin()
        self._processor_seconds = time.thread_time()

    def end_wave(self, node_size: int, step: int) -> None:
        needed = time.thread_time() - self._processor_seconds
        self._wait(self._emulated.wave_seconds(node_size, needed, step))
        super().end_wave(node_size, step)

    def end_update(self, devices: int) -> None:
        if seconds := self._emulated.step_seconds(devices):
            self._wait(seconds)

    def begin_cell(self) -> None:
        self.begin()

    def end_cell(self, run: CellRun, stages: int, node_size: int, step: int) -> None:
        needed = time.thread_time() - self._processor_seconds
        self._wait(self._emulated.cell_seconds(run, stages, node_size, needed, step))

    def end_unit(self, unit: tuple[int, ...], stages: int) -> None:
        if seconds := self._emulated.unit_seconds(unit, stages):
            self._wait(seconds)

    def _wait(self, seconds: float) -> None:
        left = self._begun + self._not_counted_seconds + seconds - time.perf_counter()
        if left > 0:
            time.sleep(left)
        else:
            self.overran += 1
