"""What schedules at jobs of one kind share: a backend, whose processes are known and must all be gone afterwards."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections import Counter
from pathlib import Path

from tests import fakecuda
from tests.chaos.series import assert_no_orphans
from virtualflow.backends.local import LocalBackend


class Attack(ABC):
    """Schedules at jobs of a backend that lives as long as the attack, unless a schedule fails.

    Calm runs are made on CPUs: those on an *accelerator* have the same bits.
    """

    def __init__(self, home: Path, accelerator: bool) -> None:
        self._start_backend()
        self.prepare(home, accelerator)
        if accelerator:
            self.close()
            os.environ.update(fakecuda.environment(fakecuda.DEVICES))  # of whatever is started from now on
            self._start_backend()
            assert len(self.backend.accelerators) == fakecuda.DEVICES

    @abstractmethod
    def prepare(self, home: Path, accelerator: bool) -> None:
        """Run what the schedules are compared with."""

    @abstractmethod
    def schedule(self, seed: int, folder: Path) -> Counter[str]:
        """Run one schedule; return how often each kind of strike had an effect."""

    def __call__(self, seed: int, folder: Path) -> Counter[str]:
        """One schedule, after which no process is left."""
        try:
            counts = self.schedule(seed, folder)
            assert_no_orphans(self._mark, self._spared)
        except BaseException:  # whatever is wrong with it, the next schedule has another one
            self.close()
            self._start_backend()
            raise
        return counts

    def close(self) -> None:
        self.backend.__exit__(None, None, None)

    def _spared(self) -> set[int]:
        self.backend.exits()  # workers that have outlived their server, with what they left, are ended here
        return {self.backend.server_pid}

    def _start_backend(self) -> None:
        self._mark = f"of-{os.getpid()}-{time.monotonic_ns()}"  # by which all that its workers start is known
        self.backend = LocalBackend(environment={"VF_CHAOS": self._mark}).__enter__()
