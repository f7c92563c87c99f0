"""A training job whose every turn is an argument: what the equivalence tests run on different devices."""

from __future__ import annotations

import json
import random
import sys

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import virtualflow as vf

CASE = {
    "model": "conv",
    "examples": 50,
    "batch_size": 16,
    "virtual_nodes": 4,
    "epochs": 2,
    "optimizer": "sgd",
    "clip_grad_norm": None,
    "loader_workers": 0,
    "augment": True,
    "reduction": "exact",
    "drop_last": False,
    "adversary": None,
    "on_nan": "raise",
    "stop_at": None,
    "save": None,
    "load": None,
    "break_the_grid": False,
    "step": 0,
}


class Examples:
    """Images with labels; augmentation draws from all three generators."""

    def __init__(self, length: int, augment: bool) -> None:
        generator = torch.Generator().manual_seed(1)
        self.images = torch.randn(length, 1, 6, 6, generator=generator)
        self.labels = torch.randint(0, 5, (length,), generator=generator)
        self.augment = augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, object]:
        image = self.images[index]
        if self.augment:
            image = image + 0.1 * torch.randn(image.shape) + 0.1 * random.random() + 0.1 * float(np.random.rand())
        return {"image": image, "rest": (self.labels[index], [torch.tensor(index)])}


def build(kind: str) -> nn.Module:
    if kind == "conv":
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(64, 5)
        )
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 5))


def make_optimizer(kind: str, model: nn.Module) -> torch.optim.Optimizer:
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decay, "weight_decay": 1e-2}, {"params": rest}]
    if kind == "sgd":
        return torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True)
    return torch.optim.AdamW(groups, lr=1e-2)


# How the loss of example i in step s is scaled.
ADVERSARIES = {
    None: lambda i, s: torch.ones(len(i)),
    "spikes": lambda i, s: torch.where((i + s) % 7 == 0, 1e6, 1.0),
    "zeros then not": lambda i, s: torch.full((len(i),), float(s % 3 == 2)),
    "denormals": lambda i, s: torch.where(i % 2 == 0, 1e-41, 3e-39),
    "extremes": lambda i, s: torch.tensor([(1.0, 1e6, 0.0, 1e-30, 1.0, 1e-41)[int(k) % 6] for k in i]),
    "nan": lambda i, s: torch.where((i == 5) & (s >= 0), float("nan"), 1.0),
}


def weighted_loss(model: nn.Module, batch: dict[str, object]) -> tuple[Tensor, Tensor]:
    labels, (indices,) = batch["rest"]
    losses = cross_entropy(model(batch["image"]), labels, reduction="none")
    scales = ADVERSARIES[CASE["adversary"]](indices.cpu(), CASE["step"]).to(losses.device)
    return (losses * scales).sum(), torch.as_tensor(float(len(labels)), device=losses.device)


def mean_loss(model: nn.Module, batch: dict[str, object]) -> Tensor:
    total, weight = weighted_loss(model, batch)
    return total / weight


def main() -> None:
    CASE.update(json.loads(sys.argv[1]))
    case = CASE
    if case["break_the_grid"]:
        from virtualflow.testing import break_the_grid

        break_the_grid()
    vf.seed(3)
    model = build(case["model"])
    optimizer = make_optimizer(case["optimizer"], model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
    data = Examples(case["examples"], case["augment"])
    trainer = vf.Trainer(
        model,
        optimizer,
        mean_loss if case["model"] == "conv" else weighted_loss,
        batch_size=case["batch_size"],
        virtual_nodes=case["virtual_nodes"],
        state=[schedule],
        clip_grad_norm=case["clip_grad_norm"],
        loader_workers=case["loader_workers"],
        reduction=case["reduction"],
        drop_last=case["drop_last"],
        on_nan=case["on_nan"],
    )
    if case["load"]:
        trainer.load(case["load"])
    for _ in trainer.epochs(case["epochs"]):
        for batch in trainer.batches(data):
            case["step"] = trainer.global_step
            trainer.step(batch)
            if trainer.global_step == case["stop_at"]:
                trainer.save(case["save"])
                print(trainer.digest())
                return
        schedule.step()
    if trainer.is_lead:
        print(trainer.digest())


main()
