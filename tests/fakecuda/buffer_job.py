"""Trains models whose forwards write buffers in ways that need care on an accelerator. Prints each one's digest."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import virtualflow as vf

KINDS = ("cycles", "toggles", "reads", "born", "born on the host", "replaced")


class Writes(nn.Module):
    """A layer, and a buffer that *kind* says what to do with."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.kind = kind
        self.register_buffer("value", torch.ones(()))
        self.register_buffer("phase", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mask", torch.ones(8, 8, dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "cycles":  # the worker's last virtual node leaves it as the first one found it
            self.phase.add_(1).remainder_(3)
        elif self.kind == "toggles":
            self.value.neg_()
            return self.layer(x) + self.value.detach() * 0 + self.layer(x) * self.value
        elif self.kind == "reads":
            self.value.mul_(0.9).add_(0.1 * x.detach().mean())
            return self.layer(x) * self.value
        elif self.kind == "born" and not hasattr(self, "table"):
            self.register_buffer("table", torch.arange(4.0, device=x.device))
        elif self.kind == "born on the host" and not hasattr(self, "table"):
            self.register_buffer("table", torch.arange(4))
        elif self.kind == "replaced":
            self.value = torch.tensor(0.5)
        return self.layer(x)


class Average(nn.Module):
    """A copy of a layer, with a buffer, that the loop keeps up to date."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))


def loss_fn(model: nn.Module, batch: Any) -> Tensor:
    return mse_loss(model(batch["x"]), batch["y"])


def collate(examples: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    x = torch.stack([x for x, _ in examples])
    return {"x": x, "y": torch.full((1, 1), 0.5).expand(len(examples), 1), "names": "a string"}


def trained(kind: str) -> str:
    vf.seed(1)
    generator = torch.Generator().manual_seed(2)
    data = [(torch.randn(4, generator=generator), torch.zeros(1)) for _ in range(72)]
    model = Writes(kind)
    average = Average()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=24, virtual_nodes=6, collate_fn=collate, state=[average])
    for _ in trainer.epochs(2):
        for batch in trainer.batches(data):
            trainer.step(batch)
            with torch.no_grad():
                average.layer.weight.lerp_(model.layer.weight, 0.1)
                average.updates += 1
    return trainer.digest()


for kind in KINDS:
    print(kind, trained(kind))
