"""What the certificate costs: the event stream, the digests of examples and the gradient's norm, timed one by one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import virtualflow as vf
from benchmarks import report
from benchmarks.settings import SETTINGS, VIRTUAL_NODES, Setting
from virtualflow.train import data, kernel
from virtualflow.train.journal import Journal
from virtualflow.train.square_tree import LANES, LEVELS

LIMIT = 0.01  # of a step


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of processor time in one step, which other work on the machine disturbs less."""

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
    section.show("the certificate's cost in processor time, one device, exact", columns, rows)
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
    record, ids = _Stopwatch(Journal, "step_done"), _Stopwatch(data, "digest_of_ids")
    taken: list[float] = []
    with record, ids:
        for _ in trainer.epochs(1):
            for batch in trainer.batches(setting.dataset()):
                started = time.process_time()
                trainer.step(batch)
                taken.append(time.process_time() - started)
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
    """Adds up the time spent in one function of a module, or in one method of a class, while it is entered."""

    def __init__(self, owner: Any, name: str) -> None:
        self._owner, self._name, self._function = owner, name, getattr(owner, name)
        self.seconds = 0.0

    def __enter__(self) -> None:
        def timed(*arguments: Any) -> Any:  # a function, so that a class binds it to its objects
            started = time.process_time()
            try:
                return self._function(*arguments)
            finally:
                self.seconds += time.process_time() - started

        setattr(self._owner, self._name, timed)

    def __exit__(self, *_: object) -> None:
        setattr(self._owner, self._name, self._function)


def norm_seconds(numel: int) -> float:
    """What the squares add to the pass that divides *numel* sums: with them, less without, at their best in turns."""
    library = kernel.load()
    if library is None:
        return float("nan")
    sums, tree = torch.randn(numel, dtype=torch.float64), torch.zeros(LEVELS, LANES, dtype=torch.float64)
    rows = torch.zeros(1, dtype=torch.int64)

    def finish(squares: int | None) -> None:
        library.vf_finish_float(sums.data_ptr(), numel, 64.0, squares, rows.data_ptr())

    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(15):
        for squares, times in zip((tree.data_ptr(), None), seconds, strict=True):
            sums.fill_(0.5)
            rows.zero_()
            times.append(_timed(partial(finish, squares)))
    return max(0.0, min(seconds[0]) - min(seconds[1]))


def _timed(function: Callable[[], object]) -> float:
    started = time.process_time()
    function()
    return time.process_time() - started
