"""Small things to train, for tests in one process."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import TensorDataset

import virtualflow as vf


def regression(length: int = 40, features: int = 6) -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(length, features, generator=generator)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True) + 0.1 * torch.randn(length, 1, generator=generator))


def classes(length: int = 40, features: int = 6, count: int = 3) -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(length, features, generator=generator)
    return TensorDataset(inputs, (inputs @ torch.randn(features, count, generator=generator)).argmax(1))


def mse(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return mse_loss(model(batch[0]), batch[1])


def cross(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


def accuracy(model: nn.Module, batch: list[Tensor]) -> tuple[Tensor, int]:
    return (model(batch[0]).argmax(1) == batch[1]).sum(), len(batch[1])


def mlp(features: int = 6, out: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Linear(features, 8), nn.Tanh(), nn.Linear(8, out))


def make(model: nn.Module | None = None, loss_fn: Any = mse, **options: Any) -> vf.Trainer:
    """A seeded Trainer with SGD and defaults for what is not given."""
    if model is None:
        vf.seed(0)
        model = mlp()
    optimizer = options.pop("optimizer", None) or torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1
    )
    return vf.Trainer(model, optimizer, loss_fn, **{"batch_size": 8, "virtual_nodes": 4, "seed": 0} | options)


def train(trainer: vf.Trainer, data: Any, epochs: int = 1, steps: int | None = None) -> list[float]:
    """Train and return the losses."""
    losses = []
    for _ in trainer.epochs(epochs):
        for batch in trainer.batches(data):
            losses.append(trainer.step(batch))
            if steps is not None and len(losses) == steps:
                return losses
    return losses
