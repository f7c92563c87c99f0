"""What the certificate costs: the event stream, the digests of examples and the gradient's norm, timed one by one."""

from __future__ import annotations

import ctypes
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import virtualflow as vf
from benchmarks import report
from benchmarks.settings import SETTINGS, VIRTUAL_NODES, Setting
from virtualflow.train import data, kernel

LIMIT = 0.01  # of a step
SQUARES = "squares[i] += (double)results[i] * (double)results[i]"


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one step."""

    setting: str
    step: float
    record: float  # the chain, and the event that is written
    ids: float  # hashing the indices that dataset[i] was called with
    norm: float  # squares, added up in the pass that divides the sums
    epoch_digest: float  # once an epoch, not counted here

    @property
    def part(self) -> float:
        return (self.record + self.ids + self.norm) / self.step


def run(*, quick: bool) -> None:
    costs = [_measure(setting, 4 if quick else 10) for setting in SETTINGS.values()]
    rows = [
        [
            cost.setting,
            f"{cost.step * 1e3:.0f} ms",
            *(f"{seconds * 1e6:.0f} us" for seconds in (cost.record, cost.ids, cost.norm)),
            f"{cost.part:.2%}",
            f"< {LIMIT:.0%}",
            "met" if cost.part < LIMIT else "MISSED",
            f"{cost.epoch_digest * 1e3:.0f} ms",
        ]
        for cost in costs
    ]
    columns = ["setting", "step", "events", "ids", "norm", "of a step", "goal", "", "digest, once an epoch"]
    section = report.Section("certificate", quick=quick)
    section.show("the certificate's cost, one device, exact", columns, rows)
    section.save(costs)


def _measure(setting: Setting, steps: int) -> Cost:
    vf.seed(0)
    model = setting.model()
    trainer = vf.Trainer(
        model,
        setting.optimizer(model),
        setting.loss,
        batch_size=VIRTUAL_NODES * setting.node_size,
        virtual_nodes=VIRTUAL_NODES,
    )
    record, ids = _Stopwatch(trainer, "_record"), _Stopwatch(data, "digest_of_ids")
    taken: list[float] = []
    with record, ids:
        for _ in trainer.epochs(1):
            for batch in trainer.batches(setting.dataset()):
                started = time.perf_counter()
                trainer.step(batch)
                taken.append(time.perf_counter() - started)
                if len(taken) == steps + 2:
                    break
    counted = len(taken)
    numel = sum(parameter.numel() for parameter in model.parameters())
    return Cost(
        setting.name,
        statistics.median(taken[2:]),
        record.seconds / counted,
        ids.seconds / counted,
        norm_seconds(numel),
        _timed(trainer.digest),
    )


class _Stopwatch:
    """Adds up the time spent in one function while it is entered."""

    def __init__(self, owner: Any, name: str) -> None:
        self._owner, self._name, self._function = owner, name, getattr(owner, name)
        self.seconds = 0.0

    def __enter__(self) -> None:
        setattr(self._owner, self._name, self._timed)

    def __exit__(self, *_: object) -> None:
        setattr(self._owner, self._name, self._function)

    def _timed(self, *arguments: Any) -> Any:
        started = time.perf_counter()
        try:
            return self._function(*arguments)
        finally:
            self.seconds += time.perf_counter() - started


def norm_seconds(numel: int) -> float:
    """What the squares add to the pass that divides *numel* sums: with them, less without, at their best in turns."""
    with_squares, without = kernel.load(), _kernel_without_squares()
    if with_squares is None or without is None:
        return float("nan")
    sums, lanes = torch.randn(numel, dtype=torch.float64), torch.zeros(4096, dtype=torch.float64)
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(15):
        for library, times in zip((with_squares, without), seconds, strict=True):
            sums.fill_(0.5)
            finish = library.vf_finish_float
            times.append(_timed(lambda finish=finish: finish(sums.data_ptr(), numel, 64.0, lanes.data_ptr())))
    return max(0.0, min(seconds[0]) - min(seconds[1]))


def _kernel_without_squares() -> ctypes.CDLL | None:
    source = kernel.SOURCE.read_text()
    if SQUARES not in source:
        raise RuntimeError(f"{kernel.SOURCE.name} no longer holds {SQUARES!r}: adapt this benchmark")
    with tempfile.TemporaryDirectory() as folder:
        variant, built = Path(folder, "variant.c"), Path(folder, "variant.so")
        variant.write_text(source.replace(SQUARES, "(void)squares"))
        try:
            subprocess.run(["cc", *kernel.FLAGS, "-o", built, variant], check=True, capture_output=True)
        except (OSError, subprocess.SubprocessError):
            return None
        library = ctypes.CDLL(str(built))
    reference = kernel.load()
    assert reference is not None
    library.vf_finish_float.argtypes = reference.vf_finish_float.argtypes
    library.vf_finish_float.restype = None
    return library


def _timed(function: Callable[[], object]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started
