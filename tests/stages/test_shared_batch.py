"""What stages share on one device and not on two: the batch, and the errors of a function that gets the last output."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import virtualflow as vf
from tests.conftest import Launcher
from virtualflow.errors import HiddenStateError
from virtualflow.train import solo

Batch = dict[str, Tensor]
CAUGHT_ERROR = """
import torch, virtualflow as vf
from torch import nn

data = torch.utils.data.TensorDataset(torch.arange(12.0).unsqueeze(1), torch.arange(12.0))
trainer = vf.Trainer(
    stages=[lambda: nn.Linear(1, 4), lambda: nn.Sequential(nn.Dropout(), nn.Linear(4, 1))],
    optimizer=lambda params: torch.optim.SGD(params, lr=1e-3),
    loss_fn=lambda output, batch: (output - batch[1]).square().mean(),
    batch_size=4, virtual_nodes=2, copies=1, seed=1,
)

def unwell(output, batch):
    if (batch[1] == 5).any():
        raise ValueError("5 is odd")
    return float(output.sum()), len(output)

for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        trainer.step(batch)
    for call in (trainer.evaluate, trainer.map):
        try:
            call(data, unwell)
        except ValueError as error:
            caught = f"{epoch}: {error}"
        if trainer.is_lead:
            print(caught)
digest = trainer.digest()
if trainer.is_lead:
    print(digest)
"""


class First(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.how = how

    def forward(self, _: None, batch: Batch) -> Tensor:
        x = batch["x"]
        if self.how == "in place":
            x.mul_(2)
        if self.how == "in the dict":
            batch["x"] = x + 100
        output: Tensor = self.layer(x)
        return output


class Last(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.seen: list[float] = []

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        self.seen.append(float(batch["x"].max()))
        output: Tensor = self.layer(x)
        return output


@pytest.fixture(autouse=True)
def own_process() -> Iterator[None]:
    solo.start_over()
    yield
    solo.start_over()


EXAMPLES = [{"x": torch.tensor([number, 1.0]), "y": torch.tensor([number])} for number in (0.0, 1.0, 2.0, 3.0)]


def trainer_of(*stages: nn.Module, **settings: Any) -> vf.Trainer:
    def loss_fn(output: Tensor, batch: Batch) -> Tensor:
        return (output - batch.pop("y")).square().mean()

    make = lambda params: torch.optim.SGD(params, lr=0.01)  # noqa: E731
    return vf.Trainer(
        stages=[*stages], optimizer=make, loss_fn=loss_fn, batch_size=4, virtual_nodes=2, seed=1, **settings
    )


def train(trainer: vf.Trainer) -> None:
    for _ in trainer.epochs(1):
        for batch in trainer.batches(EXAMPLES):
            trainer.step(batch)


def test_a_stage_that_writes_to_the_batch_is_refused() -> None:
    with pytest.raises(HiddenStateError, match="stage 0 wrote to a tensor of its batch"):
        train(trainer_of(First("in place"), Last()))


@pytest.mark.parametrize("recompute", [False, True])
def test_what_a_stage_puts_into_its_batch_no_other_sees(recompute: bool) -> None:
    last = Last()
    train(trainer_of(First("in the dict"), last, recompute=recompute))
    assert max(last.seen) == 3.0


def test_an_evaluation_shares_no_batch_either() -> None:
    trainer = trainer_of(First("in place"), Last())
    with pytest.raises(HiddenStateError, match="stage 0 wrote"):
        trainer.evaluate(EXAMPLES, lambda output, batch: (0.0, len(output)))


def test_an_error_of_a_metric_is_met_by_all_and_leaves_no_trace(run_on_cpus: Launcher, tmp_path: Path) -> None:
    """Whoever catches it trains on as before: with dropout, and with gradients."""
    script = tmp_path / "caught.py"
    script.write_text(CAUGHT_ERROR)
    printed = []
    for devices in (1, 2):
        finished = run_on_cpus(script, devices, [])
        assert finished.outcome.code == 0, finished.failure + finished.err()
        printed.append(b"".join(text for (_, stream), text in finished.printed.text.items() if stream == "stdout"))
    assert printed[0].count(b"5 is odd") == 4
    assert printed[0] == printed[1]
