"""Around a training script: what it loads, a death at a chosen point, and a promise that is broken on purpose."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from virtualflow.core import faults
from virtualflow.core.grid import Grid


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


def kill_at(point: str, hit: int, marker: Path, spared: Callable[[], bool] = lambda: False) -> None:
    """Have this process killed when it reaches *point* for the *hit*-th time; *marker* is left behind as proof.

    A time at which it is *spared* does not count.
    """
    left = hit

    def reached(name: str) -> None:
        nonlocal left
        if name == point and not spared():
            left -= 1
            if left == 0:
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    faults.arm(reached)


def break_the_grid() -> None:
    """Make this process sum gradients plainly instead of on a grid: the promise no longer holds."""
    Grid.constant = property(lambda grid: 0.0)  # type: ignore[method-assign,assignment]
