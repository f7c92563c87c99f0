"""A job with a fault in it, if one is named: what makes two runs of a script differ in the world."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import virtualflow as vf
from tests.train.small import make, mlp, regression

fault, folder = sys.argv[1], Path(sys.argv[2])


class OwnDropout(nn.Module):
    """Draws from a generator that nobody seeds, after a while."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.generator = torch.Generator()
        self.generator.manual_seed(int.from_bytes(os.urandom(4), "little"))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * torch.rand(x.shape, generator=self.generator) if self.calls > 40 else x


class Counting(nn.Module):
    """Behaves in another way after some calls, of which a checkpoint knows nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * (1 + self.calls // 40 / 8)


class BoundToThreads(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + torch.get_num_threads() / 8)


FAULTS = {"dropout": OwnDropout, "counter": Counting, "threads": BoundToThreads}
vf.seed(0)
model = mlp()
if fault in FAULTS:
    model = nn.Sequential(model, FAULTS[fault]())
data = regression()
if fault == "data":
    scale = float((folder / "scale.txt").read_text())
    data = [(x * scale, y) for x, y in data]
trainer = make(model)
for epoch in trainer.epochs(4):
    for batch in trainer.batches(data):
        if (folder / "flip").exists() and trainer.global_step == 9:
            with torch.no_grad():
                next(model.parameters()).view(torch.int32).view(-1)[0] ^= 1 << 20
        trainer.step(batch)
    if epoch == 1:
        trainer.save(folder / "kept.pt")
