"""How long this device takes for its virtual nodes; on one that stands for another, the waiting that makes it so."""

from __future__ import annotations

import time

from virtualflow.core.emulation import Emulated


class Pace:
    """Times the waves and updates of one worker."""

    def __init__(self) -> None:
        self.wave_seconds = 0.0  # of the current step
        self.overran = 0  # waves and updates of the current step that took longer than they should have
        self._begun = self._excused = 0.0

    def begin_step(self) -> None:
        self.wave_seconds, self.overran = 0.0, 0

    def begin(self) -> None:
        """A wave or an update begins."""
        self._begun, self._excused = time.perf_counter(), 0.0

    def excuse(self, seconds: float) -> None:
        """Part of the wave was spent waiting for others."""
        self._excused += seconds

    def end_wave(self, node_size: int, step: int) -> None:
        """A wave of *node_size* examples ends, in that *step* of the job."""
        self.wave_seconds += time.perf_counter() - self._begun - self._excused

    def end_update(self, devices: int) -> None:
        """The update of a step on so many *devices* ends."""


class EmulatedPace(Pace):
    """The pace of another device: a wave waits until a deadline.

    One that overran it did not take the time it should have, which is counted: a measurement with such waves is void.
    """

    def __init__(self, emulated: Emulated) -> None:
        super().__init__()
        self._emulated = emulated
        self._processor_seconds = 0.0  # of this thread, when the wave began

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

    def _wait(self, seconds: float) -> None:
        left = self._begun + self._excused + seconds - time.perf_counter()
        if left > 0:
            time.sleep(left)
        else:
            self.overran += 1
