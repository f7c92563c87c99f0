"""Runs a script of the corpus as a worker of a job that its runner disturbs: ``held.py SCRIPT GATES``.

The script itself knows nothing of it. In the folder GATES, ``hold-N`` lets no worker begin step N of the first Trainer,
``slow`` makes each step take its time, and ``kill-DEVICE-N-POINT`` kills a worker at a point within step N.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from virtualflow.testing import kill_at
from virtualflow.train import solo
from virtualflow.train.step_metrics import StepLoss
from virtualflow.train.trainer import Trainer

POLL_SECONDS = 0.005
SLOW_SECONDS = 0.05


def install(gates: Path) -> None:
    """Have every step of the first Trainer that makes one pass the *gates*."""
    first: Trainer | None = None

    def held(step: Callable[..., StepLoss]) -> Callable[..., StepLoss]:
        @functools.wraps(step)
        def call(trainer: Trainer, *arguments: Any) -> StepLoss:
            nonlocal first
            first = first or trainer
            if trainer is first:
                pass_gates(gates, trainer.global_step)
            return step(trainer, *arguments)

        return call

    Trainer.step = held(Trainer.step)  # type: ignore[method-assign]
    Trainer.gradients = held(Trainer.gradients)  # type: ignore[method-assign]


def pass_gates(gates: Path, step: int) -> None:
    while (gates / f"hold-{step}").exists():
        time.sleep(POLL_SECONDS)
    if (gates / "slow").exists():
        time.sleep(SLOW_SECONDS)
    member = solo.installed()
    for order in gates.glob(f"kill-{member.device if member is not None else ''}-{step}-*"):
        order.unlink()  # for one worker: the one that takes its place is spared
        kill_at(order.name.split("-")[3], 1, gates / "killed")


def main() -> None:
    script, gates = sys.argv[1:]
    install(Path(gates))
    sys.argv = [script]
    module = ModuleType("__main__")
    module.__file__ = script
    sys.modules["__main__"] = module
    exec(compile(Path(script).read_bytes(), script, "exec", dont_inherit=True), module.__dict__)


main()
