"""A job that loses its coordinator, and workers with it, where a test wants it to.

What it does after a step, after an epoch and at the top of one counts: whatever is done twice or left out after a
resume gives another model.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import virtualflow as vf
from tests.train.small import make, mlp, regression
from virtualflow.core import faults
from virtualflow.train import solo

options = {"where": "", "epoch": 1, "dies": [], "marker": "", "sharding": "none"} | json.loads(sys.argv[1])
member = solo.installed()
device = member.device if member is not None else "0"


def coordinator() -> int:
    """The parent of the fork server."""
    return int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])


def place(name: str) -> None:
    """Here it happens, on each worker once."""
    if name != options["where"] or epoch != options["epoch"] or Path(options["marker"]).with_suffix(".over").exists():
        return
    mark = Path(options["marker"]).with_suffix(f".{device}")
    if mark.exists():
        return
    if device == "0":
        os.kill(coordinator(), signal.SIGKILL)
    mark.touch()
    if device in options["dies"]:
        os.kill(os.getpid(), signal.SIGKILL)


epoch = -1
vf.seed(0)
model = mlp()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda count: 0.99**count)
progress = vf.State(best=9e9, evaluations=0, passes=0)
trainer = make(model, optimizer=optimizer, state=[schedule, progress], sharding=options["sharding"])
data = regression()
faults.arm(lambda name: place("save") if name == "save" else None)


def error(model: nn.Module, batch: Any) -> tuple[Tensor, int]:
    place(doing)
    return (model(batch[0]) - batch[1]).abs().sum(), len(batch[1])


def outputs(model: nn.Module, batch: Any) -> Tensor:
    place(doing)
    out: Tensor = model(batch[0])
    return out


def evaluate(now: str) -> None:
    global doing
    doing = now
    value = trainer.evaluate(data, error)
    progress.best, progress.evaluations = min(value, progress.best), progress.evaluations + 1
    for group in optimizer.param_groups:
        group["weight_decay"] = 1e-4 * progress.evaluations * progress.best


doing = "evaluate before training"
for epoch in trainer.epochs(4):  # noqa: B007
    evaluate("evaluate at the top")
    for group in optimizer.param_groups:
        group["momentum"] *= 0.97
    for batch in trainer.batches(data):
        place("before a step")
        schedule.step()
        trainer.step(batch)
        place("after a step")
        if batch.step % 2 == 1:
            evaluate("evaluate in the loop")
        schedule.step()
    place("an epoch's end")
    schedule.step()
    progress.passes += 1
    evaluate("evaluate")
    doing = "predict"
    if trainer.predict(data, outputs).sum() > 0:
        schedule.step()
    trainer.save(Path(options["marker"]).with_suffix(".pt"))
    place("between epochs")
epoch = options["epoch"]
place("after the loop")
evaluate("evaluate at the end")
place("the end")
digest = trainer.digest()
if trainer.is_lead:
    print(digest, progress.evaluations, progress.passes, progress.best.hex())
