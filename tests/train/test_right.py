"""Right, not only equal: the step's gradient is that of one big batch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import virtualflow as vf
from tests.train.small import accuracy, classes, cross, make, mlp, mse, regression, train


class Frozen(torch.optim.SGD):
    """Applies nothing, so that gradients can be looked at."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.seen = [p.grad.clone() if p.grad is not None else None for g in self.param_groups for p in g["params"]]


def big_batch_gradient(model: nn.Module, loss: object, batch: list[Tensor]) -> list[Tensor]:
    double = copy.deepcopy(model).double()
    converted = [item.double() if item.is_floating_point() else item for item in batch]
    loss(double, converted).backward()  # type: ignore[operator]
    return [p.grad for p in double.parameters()]


@pytest.mark.parametrize("reduction", ["exact", "fast"])
@pytest.mark.parametrize("sizes", [4, [1, 5, 2], [6, 2]])
def test_the_gradient_is_that_of_one_big_batch(reduction: str, sizes: int | list[int]) -> None:
    vf.seed(0)
    model, data = mlp(), regression(8)
    optimizer = Frozen(model.parameters(), lr=1.0)
    trainer = make(model, optimizer=optimizer, virtual_nodes=sizes, reduction=reduction)
    train(trainer, data)
    for mine, true in zip(optimizer.seen, big_batch_gradient(model, mse, list(data.tensors)), strict=True):
        assert float((mine.double() - true).norm() / true.norm()) < 1e-6


class Sentences:
    """Sequences of unequal length; padding is -100."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        self.rows = torch.randint(0, 7, (10, 6), generator=generator)
        self.lengths = torch.randint(1, 6, (10,), generator=generator)

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        targets = self.rows[index].roll(-1).clone()
        targets[int(self.lengths[index]) :] = -100
        return self.rows[index], targets


def token_loss(model: nn.Module, batch: list[Tensor]) -> tuple[Tensor, Tensor]:
    logits = model(batch[0])
    return cross_entropy(logits.flatten(0, 1), batch[1].flatten(), reduction="sum"), (batch[1] != -100).sum()


@pytest.mark.parametrize("reduction", ["exact", "fast"])
def test_token_weighted_losses_agree_with_the_single_big_batch(reduction: str) -> None:
    vf.seed(0)
    model = nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 7))
    optimizer, data = Frozen(model.parameters(), lr=1.0), Sentences()
    trainer = make(
        model, token_loss, optimizer=optimizer, batch_size=10, virtual_nodes=[1, 4, 3, 2], reduction=reduction
    )
    (loss,) = train(trainer, data)
    batch = [torch.stack([data[i][part] for i in range(10)]) for part in (0, 1)]

    def mean(model: nn.Module, batch: list[Tensor]) -> Tensor:
        return cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    assert loss == pytest.approx(mean(model, batch).item(), rel=1e-6)
    for mine, true in zip(optimizer.seen, big_batch_gradient(model, mean, batch), strict=True):
        assert float((mine.double() - true).norm() / true.norm()) < 1e-6


def test_the_gradient_of_the_papers_uneven_example_weighs_every_example_the_same() -> None:
    model = nn.Linear(1, 1, bias=False)
    optimizer = Frozen(model.parameters(), lr=1.0)
    data = torch.utils.data.TensorDataset(torch.arange(1.0, 9.0).unsqueeze(1))
    trainer = make(model, lambda model, batch: model(batch[0]).mean(), optimizer=optimizer, virtual_nodes=[6, 2])
    train(trainer, data)
    assert float(optimizer.seen[0]) == pytest.approx(4.5)


def plain_pytorch(data: torch.utils.data.TensorDataset, epochs: int) -> float:
    vf.seed(0)
    model = mlp(out=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs, labels = data.tensors
    for epoch in range(epochs):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        for chosen in order.split(16):
            optimizer.zero_grad()
            cross(model, [inputs[chosen], labels[chosen]]).backward()
            optimizer.step()
    correct, count = accuracy(model, [inputs, labels])
    return float(correct) / count


def test_plain_pytorch_reaches_the_same_accuracy() -> None:
    data = classes(400)
    plain = plain_pytorch(data, 8)
    vf.seed(0)
    model = mlp(out=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = make(model, cross, optimizer=optimizer, batch_size=16)
    train(trainer, data, epochs=8)
    assert trainer.evaluate(data, accuracy) == pytest.approx(plain, abs=0.02)
    assert plain > 0.9


def test_batch_norm_statistics_are_the_mean_over_virtual_nodes() -> None:
    vf.seed(0)
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 1))
    data = regression(12)
    trainer = make(
        model, optimizer=Frozen(model.parameters(), lr=1.0), batch_size=12, virtual_nodes=[8, 4], sampler=range_of(12)
    )
    train(trainer, data)
    inputs = data.tensors[0]
    expected = 0.1 * (8 * inputs[:8].mean(0) + 4 * inputs[8:].mean(0)) / 12
    assert torch.allclose(model[0].running_mean, expected, atol=1e-6)
    assert int(model[0].num_batches_tracked) == 1


def range_of(length: int) -> object:
    return lambda epoch: range(length)
