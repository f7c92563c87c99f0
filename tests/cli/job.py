"""The job of the tests of ``vf`` verbs: files in its folder slow it down or hold it where a test wants it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import virtualflow as vf
from tests.train.small import make, mlp, regression
from virtualflow.train import solo

folder = Path(sys.argv[1])


def wait_while(name: str) -> None:
    while (folder / name).exists():
        time.sleep(0.01)


member = solo.installed()
wait_while("hold-joining" if member is not None and member.joining else "hold-starting")
vf.seed(0)
trainer = make(mlp())
data = regression()
for _ in trainer.epochs(40):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
        print(f"step {trainer.global_step} loss {loss}")
        wait_while("hold-step")
        if (folder / "slow").exists():
            time.sleep(0.05 * 1.02**trainer.global_step)  # ever slower: a busy machine must not miss its end
if trainer.is_lead:
    print(trainer.digest())
