"""For tests of code that uses VirtualFlow, and for tests that tests can fail."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from virtualflow.core import faults
from virtualflow.core.grid import Grid
from virtualflow.errors import PeerLostError

if TYPE_CHECKING:
    from virtualflow.job.folder import JobFolder


class RecordingDataset:
    """Wraps a dataset and writes down, in the process that really calls ``dataset[i]``, what it was called for.

    Each line of *path* is ``epoch step virtual_node attempt index``.
    """

    def __init__(self, dataset: Any, path: Path) -> None:
        self._dataset = dataset
        self._path = path

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        from virtualflow.train.data import fetching, is_looking

        if is_looking():
            return self._dataset[index]
        request = fetching()
        key = " ".join(map(str, request.key)) if request is not None else "- - - -"
        with self._path.open("a") as file:  # appended in one write: loader processes share the file
            file.write(f"{key} {index}\n")
        return self._dataset[index]


def kill_at(point: str, hit: int, marker: Path) -> None:
    """Have this process killed when it reaches *point* for the *hit*-th time; *marker* is left behind as proof."""
    left = hit

    def reached(name: str) -> None:
        nonlocal left
        if name == point:
            left -= 1
            if left == 0:
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    faults.arm(reached)


def break_the_grid() -> None:
    """Make this process sum gradients plainly instead of on a grid: the promise no longer holds."""
    Grid.constant = property(lambda grid: 0.0)  # type: ignore[method-assign,assignment]


class FakeProcess:
    """A coordinator's process that does nothing until a test ends it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self.returncode

    def end(self, code: int) -> None:
        self.returncode = code

    def kill(self) -> None:
        self.end(-signal.SIGKILL)


class FakeLauncher:
    """Starts no coordinators for a manager; a test plays them. ``Manager(..., launcher=FakeLauncher())``."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []  # job and token of each launch
        self.processes: list[FakeProcess] = []

    def __call__(self, folder: JobFolder, token: str, **origin: Any) -> FakeProcess:
        self.made.append((folder.path.name, token))
        self.processes.append(FakeProcess(pid=len(self.made)))
        return self.processes[-1]


class ThreadGroup:
    """A group whose workers are threads of this process: what gloo does between processes, in the same order.

    ``ThreadGroup.of(n)`` makes the *n* members. ``lose`` is the death of one: the others get PeerLostError.
    """

    def __init__(self, rank: int, size: int, meeting: threading.Barrier, slots: list[Any]) -> None:
        self.rank = rank
        self.size = size
        self._meeting = meeting
        self._slots = slots

    @classmethod
    def of(cls, size: int, patience_seconds: float = 30.0) -> list[ThreadGroup]:
        meeting, slots = threading.Barrier(size, timeout=patience_seconds), [None] * size
        return [cls(rank, size, meeting, slots) for rank in range(size)]

    def sum(self, tensor: Any) -> ThreadGroup:
        first, *others = self._exchange(tensor)
        for other in others:
            first = first + other
        tensor.copy_(first)
        return self

    def max(self, tensor: Any) -> ThreadGroup:
        first, *others = self._exchange(tensor)
        for other in others:
            first = first.maximum(other)
        tensor.copy_(first)
        return self

    def gather(self, tensor: Any, into: list[Any]) -> ThreadGroup:
        for target, value in zip(into, self._exchange(tensor), strict=True):
            target.copy_(value)
        return self

    def broadcast(self, tensor: Any, source: int) -> ThreadGroup:
        tensor.copy_(self._exchange(tensor)[source])
        return self

    def wait(self) -> None:
        """A call has ended when it returns."""

    def lose(self) -> None:
        self._meeting.abort()

    def _exchange(self, tensor: Any) -> list[Any]:
        try:
            self._slots[self.rank] = tensor.clone()
            self._meeting.wait()
            everyone = list(self._slots)
            self._meeting.wait()  # nobody puts in the next one before all have taken this
        except threading.BrokenBarrierError as error:
            raise PeerLostError("a thread of the group is lost") from error
        return everyone


def run_together(*workers: Callable[[], Any]) -> list[Any]:
    """Run *workers* as threads; return what each returned, or raise what the first of them raised."""
    with ThreadPoolExecutor(len(workers)) as pool:
        running = [pool.submit(worker) for worker in workers]
    return [each.result() for each in running]
