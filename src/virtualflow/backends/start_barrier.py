"""The first workers of a job start when all have their devices: they wait for each other from then on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

TICK_SECONDS = 0.2


class StartBarrier:
    """Where the first workers of each job wait, in threads of their own."""

    def __init__(self) -> None:
        self._missing: dict[str, set[str]] = {}
        self._change = threading.Condition()

    def expect(self, job_id: str, devices: Sequence[str]) -> None:
        with self._change:
            self._missing.setdefault(job_id, set(devices))

    def arrive(self, job_id: str, device: str) -> None:
        with self._change:
            self._missing.get(job_id, set()).discard(device)
            if not self._missing.get(job_id):
                self._missing.pop(job_id, None)
                self._change.notify_all()

    def wait(self, job_id: str, is_wanted: Callable[[], bool]) -> None:
        with self._change:
            while job_id in self._missing and is_wanted():
                self._change.wait(TICK_SECONDS)
