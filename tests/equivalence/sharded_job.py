"""A job whose state is spread over devices, or not: layers of several blocks, dropout, batch norm, any optimizer."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import virtualflow as vf
from virtualflow.core import blocks
from virtualflow.testing import kill_at
from virtualflow.train import solo

options: dict[str, Any] = {
    "optimizer": "AdamW",
    "settings": {},
    "sharding": "state",
    "copies": 2,
    "epochs": 2,
    "clip_grad_norm": None,
    "scaler": False,
    "groups": False,
    "phases": False,
    "frozen_epochs": [],
    "faults": [],
    "folder": None,
    "save": None,
    "load": None,
    "stop_after": None,
    "dtype": "float32",
} | json.loads(sys.argv[1])
blocks.BLOCK_ELEMENTS = 4096
member = solo.installed()
for number, (device, point, hit) in enumerate(options["faults"]):
    if member is not None and member.device == device:
        marker = Path(options["folder"]) / f"struck-{number}"
        if not marker.exists():
            kill_at(point, hit, marker, spared=lambda: len(member.devices) <= 1)
            break


class Lion(torch.optim.Optimizer):
    """The sign of a momentum, written by hand."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99), "weight_decay": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                one, other = group["betas"]
                parameter.add_(torch.sign(momentum * one + parameter.grad * (1 - one)), alpha=-group["lr"])
                momentum.mul_(other).add_(parameter.grad, alpha=1 - other)


vf.seed(1)
generator = torch.Generator().manual_seed(2)
data = torch.utils.data.TensorDataset(
    torch.randn(44, 1, 8, 8, generator=generator), torch.randint(0, 5, (44,), generator=generator)
)
model = nn.Sequential(
    nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(144, 70), nn.Tanh()
)
model.append(nn.Linear(70, 5)).to(memory_format=torch.channels_last, dtype=getattr(torch, options["dtype"]))
trained: Any = list(model.parameters())
if options["groups"]:
    trained = [{"params": trained[::2]}, {"params": trained[1::2], "lr": 0.02}]
kind: Any = Lion if options["optimizer"] == "Lion" else getattr(torch.optim, options["optimizer"])
if options["optimizer"] == "Muon":
    trained = [parameter for parameter in trained if parameter.dim() == 2]
rest = trained.pop(0) if options["phases"] else None
optimizer = kind(trained, **options["settings"])
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
averaging = torch.optim.swa_utils.get_swa_multi_avg_fn()  # by lists, as torch chooses on accelerators
average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=averaging)
kind_of_device = "cuda" if torch.cuda.is_available() else "cpu"
scaler = torch.amp.GradScaler(kind_of_device, init_scale=2.0**126, growth_interval=3) if options["scaler"] else None


def loss_fn(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return cross_entropy(model(batch[0].to(next(model.parameters()).dtype)).float(), batch[1])


arguments: Any = (optimizer, loss_fn)
if options["phases"]:
    arguments = ({"most": arguments, "rest": (torch.optim.Adam([rest], lr=0.01), loss_fn)},)
trainer = vf.Trainer(
    model,
    *arguments,
    batch_size=16,
    virtual_nodes=4,
    state=[schedule, average],
    sharding=options["sharding"],
    copies=options["copies"],
    clip_grad_norm=options["clip_grad_norm"],
    grad_scaler=scaler,
    loader_workers=0,
)
if options["load"]:
    trainer.load(options["load"])
for epoch in trainer.epochs(options["epochs"]):
    model[0].requires_grad_(epoch not in options["frozen_epochs"])
    for batch in trainer.batches(data):
        for phase in ("most", "rest") if options["phases"] else ("",):
            trainer.step(batch, phase)
        average.update_parameters(model)
        if options["save"] and trainer.global_step == 2:
            trainer.save(options["save"])
        if trainer.global_step == options["stop_after"]:
            sys.exit()
    schedule.step()
digest = trainer.digest()
if trainer.is_lead:
    print(scaler.get_scale() if scaler is not None else "not scaled")
    print(digest)
