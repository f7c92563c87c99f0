"""What a replay of the first step finds, what it leaves alone, and what is told where a job goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import virtualflow as vf
from tests.train.small import make, mlp, regression, train
from virtualflow.errors import HiddenStateError
from virtualflow.train.settings import Settings
from virtualflow.train.state import Parts

pytestmark = pytest.mark.on_cuda_too


class Counting(nn.Module):
    def __init__(self, *, reads: bool) -> None:
        super().__init__()
        self.linear, self.calls, self.reads = nn.Linear(6, 1), 0, reads
        self.last: Tensor | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        self.last = self.linear(inputs)
        return self.last * (1 + self.calls / 10) if self.reads else self.last


def test_a_forward_that_reads_what_it_counts_is_refused_before_anything_is_trained() -> None:
    vf.seed(0)
    trainer = make(Counting(reads=True))
    before = trainer.digest()
    with pytest.raises(HiddenStateError, match="keeps something in 'calls'"):
        train(trainer, regression())
    assert trainer.digest() == before


def test_a_forward_may_count_and_keep_what_it_does_not_read() -> None:
    vf.seed(0)
    train(make(Counting(reads=False)), regression())


class Noisy:
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(self.rng.normal(size=6)).float()


@pytest.mark.parametrize("workers", [None, 1])
def test_a_dataset_with_a_generator_of_its_own_is_refused_in_the_first_step(workers: int | None) -> None:
    vf.seed(0)
    with pytest.raises(HiddenStateError, match="Its examples were others"):
        train(make(loss_fn=lambda m, b: m(b).mean(), loader_workers=workers), Noisy())


class Keeping:
    """Keeps its last batch and loss, as classes around a loop do."""

    def __init__(self, *, reads: bool) -> None:
        self.reads = reads
        self.loss = torch.zeros(())

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        return self.compute(model, batch)

    def compute(self, model: nn.Module, batch: Any) -> Tensor:
        self.batch, before = batch, self.loss.detach()
        loss: Tensor = ((model(batch[0]) - batch[1]) ** 2).mean()
        self.loss = loss
        return loss + before * loss if self.reads else loss


def test_a_loss_may_keep_its_last_batch() -> None:
    results = []
    for bound in (False, True):
        vf.seed(0)
        keeping = Keeping(reads=False)
        trainer = make(mlp(), loss_fn=keeping.compute if bound else keeping)
        train(trainer, regression())
        results.append(trainer.digest())
    assert results[0] == results[1]


def test_a_loss_that_reads_what_it_kept_is_refused_by_name() -> None:
    vf.seed(0)
    with pytest.raises(HiddenStateError, match=r"self\.loss"):
        train(make(mlp(), loss_fn=Keeping(reads=True).compute), regression())


def test_a_private_attribute_that_a_library_adds_is_not_carried_to_another_process() -> None:
    model = nn.Dropout(0.1)
    settings = Settings(Parts(model), (torch.optim.SGD([nn.Parameter(torch.zeros(1))]),), ())
    model._hooks_installed = True  # type: ignore[assignment]
    model.p = 0.5
    assert settings.take()["attributes"] == {"": {"p": 0.5}}


def ended_and_resumed(checkpoint: Path, epochs: int) -> tuple[vf.Trainer, vf.Trainer]:
    """One that has come to its end, and one at the second step of the last epoch."""
    first = make()
    for _ in first.epochs(epochs):
        for batch in first.batches(regression()):
            first.step(batch)
            if batch.step == 1:
                first.save(checkpoint)
    resumed = make()
    resumed.load(checkpoint)
    return first, resumed


def test_a_resumed_job_is_told_that_enumerate_counts_from_zero(tmp_path: Path) -> None:
    first, resumed = ended_and_resumed(tmp_path / "c.pt", epochs=2)

    def go_on() -> None:
        for _ in resumed.epochs(2):
            for _number, batch in enumerate(resumed.batches(regression())):
                resumed.step(batch)

    with pytest.warns(UserWarning, match=r"enumerate.*batch\.step"):
        go_on()
    assert resumed.digest() == first.digest()


def test_a_checkpoint_within_an_epoch_does_not_go_on_with_another_dataset(tmp_path: Path) -> None:
    _, resumed = ended_and_resumed(tmp_path / "c.pt", epochs=1)
    changed = regression()
    changed.tensors[0][-1] += 1
    with pytest.raises(HiddenStateError, match="dataset is another one"):
        train(resumed, changed, epochs=1)
