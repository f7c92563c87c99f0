"""Virtual nodes of unequal size, as plans for mixed device types have them: weighted, sharded and learning right."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import virtualflow as vf
from tests.train.small import accuracy, make, mse


class Counting(torch.utils.data.TensorDataset):
    """Counts how often each example is asked for."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        super().__init__(*tensors)
        self.calls: Counter[int] = Counter()

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        self.calls[index] += 1
        return super().__getitem__(index)


def test_the_papers_example_of_6_and_2_examples_weighs_each_example_alike() -> None:
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(8, 6, generator=generator), torch.randn(8, 1, generator=generator)
    vf.seed(0)
    model = nn.Linear(6, 1)
    start = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    trainer = make(model, optimizer=optimizer, batch_size=8, virtual_nodes=[6, 2], sampler=lambda _: range(8))
    for _ in trainer.epochs(1):
        for batch in trainer.batches(torch.utils.data.TensorDataset(inputs, targets)):
            trainer.step(batch)
    applied = start - model.weight.detach()

    def gradient(part: slice) -> torch.Tensor:
        weight = start.clone().requires_grad_()
        loss = ((inputs[part] @ weight.T + bias - targets[part]) ** 2).mean()
        return torch.autograd.grad(loss, weight)[0]

    vf.seed(0)
    bias = nn.Linear(6, 1).bias.detach()
    right = gradient(slice(0, 8))
    naive = (gradient(slice(0, 6)) + gradient(slice(6, 8))) / 2
    assert torch.allclose(applied, right, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(applied, naive, rtol=1e-2)


@pytest.mark.parametrize("sizes", [[6, 2], [5, 5, 2], [1, 7]])
def test_each_example_is_loaded_once_an_epoch_however_the_batch_is_cut(sizes: list[int]) -> None:
    inputs = torch.randn(50, 6)
    data = Counting(inputs, inputs.sum(1, keepdim=True))
    trainer = make(batch_size=sum(sizes), virtual_nodes=sizes, loss_fn=mse)
    for _ in trainer.epochs(2):
        data.calls.clear()
        for batch in trainer.batches(data):
            trainer.step(batch)
    attempts = Counter(data.calls.values())
    assert attempts == {1: 50}  # the second epoch: in the first, the first step is made twice to measure


def test_plans_with_equal_and_unequal_node_sizes_learn_alike() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    digits = datasets.load_digits()
    data = torch.utils.data.TensorDataset(
        torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    )
    train, test = torch.utils.data.random_split(data, [1500, 297], torch.Generator().manual_seed(0))

    def trained(sizes: list[int]) -> float:
        vf.seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        loss = lambda m, b: cross_entropy(m(b[0]), b[1])  # noqa: E731
        trainer = vf.Trainer(model, optimizer, loss, batch_size=64, virtual_nodes=sizes)
        for _ in trainer.epochs(6):
            for batch in trainer.batches(train):
                trainer.step(batch)
        return trainer.evaluate(test, accuracy)

    equal, unequal = trained([16] * 4), trained([24, 24, 8, 8])
    assert min(equal, unequal) > 0.93
    assert abs(equal - unequal) < 0.02
