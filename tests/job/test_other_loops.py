"""Loops, data and phases that are not the Trainer's own: the same bits through growth and the death of the lead."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Finished
from tests.job.driven import Driven, after_a_loss, to
from virtualflow.backends.local import LocalBackend
from virtualflow.events import EpochEnded
from virtualflow.job.coordinator import Coordinator

FOREIGN = """
import torch, virtualflow as vf
from tests.train.small import mlp, mse, regression

vf.seed(0)
model, optimizer, data = mlp(), None, regression()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
history = vf.State(losses=[])
trainer = vf.Trainer(model, optimizer, lambda m, b: (mse(m, b), {"n": len(b[0])}), batch_size=8, virtual_nodes=4,
                     state=[history])
early = trainer.map(data, lambda m, b: len(b[0]), batch_size=5)  # before the loop: answered from records on a joiner
assert early == [5] * 8, early
ended_epochs = 0
trainer.enter()
start = trainer.position
for epoch in range(start.epoch + start.finished, 12):
    passing = trainer.open_pass(data, epoch, 12)
    for step in range(passing.first_step, passing.steps):
        loss = trainer.gradients(passing.batch(step))
        assert loss.metrics["n"] == 8
        optimizer.step()
        history.losses.append(float(loss))
        pace(trainer)
    passing.finish()
    ended_epochs += 1  # on a worker that joins later, it counts from there
    trainer.once(lambda: (folder / "once").open("a").write(f"{epoch}\\n"))
    outputs = trainer.map(data, lambda m, b: {"sum": m(b[0]).sum(), "rows": len(b[0])})
    assert [one["rows"] for one in outputs] == [2] * 20
    shared = trainer.broadcast({"lead": trainer.is_lead, "total": torch.stack([one["sum"] for one in outputs]).sum()})
    assert shared["lead"] is True
    assert trainer.gather({"lead": trainer.is_lead})[0] == {"lead": True}
trainer.leave()
assert len(history.losses) == 60
if trainer.is_lead:
    print("losses", sum(history.losses))
"""

GAN = """
import virtualflow as vf
from tests.train.test_phases import DATA, gan

trainer = gan()
for epoch in trainer.epochs(6):
    for batch in trainer.batches(DATA):
        trainer.step(batch, "d")
        trainer.step(batch, "g")
        pace(trainer)
"""

STEPS = """
import torch, virtualflow as vf
from torch.utils.data import DataLoader
from tests.train.small import make, mlp, regression

vf.seed(0)
trainer = make(mlp(), sampler=None)
def draw(size):
    inputs = torch.randn(size, 6)
    return [inputs, inputs.sum(1, keepdim=True)]
for batch in trainer.steps(60, draw):
    trainer.step(batch)
    pace(trainer)
"""

LOADER = """
import torch, virtualflow as vf
from torch.utils.data import DataLoader
from tests.train.small import make, mlp, regression

vf.seed(0)
trainer = make(mlp())
loader = DataLoader(regression(), 8, shuffle=True)
for epoch in trainer.epochs(12):
    for batch in trainer.batches(loader):
        trainer.step(batch)
        pace(trainer)
"""


def trained(finished: Finished) -> tuple[list[Any], str]:
    digests = [event.digest for event in finished.events if isinstance(event, EpochEnded)]
    return [(step.chain, step.metrics, step.phase) for step in finished.steps], digests[-1]


def kill_the_lead(coordinator: Coordinator) -> None:
    lead = coordinator.status().workers[0]
    os.kill(lead.pid, signal.SIGKILL)


@pytest.mark.parametrize("script", [FOREIGN, GAN, STEPS, LOADER], ids=["foreign", "gan", "steps", "loader"])
def test_growth_and_the_death_of_the_lead_change_no_bit(script: str, backend: LocalBackend, tmp_path: Path) -> None:
    calm = Driven(backend, tmp_path / "calm", script).run(1)
    assert calm.outcome.code == 0, calm.failure
    driven = Driven(backend, tmp_path / "driven", script)
    finished = driven.run(2, [(4, to(3)), (9, kill_the_lead), (15, after_a_loss(to(1)))])
    assert finished.outcome.code == 0, finished.failure
    assert trained(finished) == trained(calm)
    assert {change.cause for change in finished.changes} == {"resize", "loss"}
    if script == FOREIGN:
        assert any(calm.out().splitlines()[-1] in text.decode() for text in finished.printed.text.values())
        warned = [text.decode() for (_, stream), text in finished.printed.text.items() if stream == "stderr"]
        assert any(
            "joined a running job, and runs the script from the top: 'ended_epochs' had" in text for text in warned
        )
        assert sorted(map(int, (tmp_path / "driven" / "once").read_text().split())) == list(range(12))
