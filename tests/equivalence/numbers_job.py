"""Small jobs, one for each thing that depends on numbers in an easily overlooked way; the first argument chooses."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

import virtualflow as vf

CASE = sys.argv[1]
vf.seed(0)
generator = torch.Generator().manual_seed(1)
inputs = torch.randn(11 if CASE == "scaler" else 48, 6, generator=generator)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 8), nn.Linear(8, 1)
        self.calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        if CASE == "data" and self.calls > 30:
            self.head.weight.data *= 0.99
        outputs = self.head(self.first(inputs).tanh())
        return outputs + (outputs * 0).sqrt() if CASE == "nan" and self.calls > 10 else outputs


class Keeping(torch.optim.SGD):
    """Keeps every gradient that it gets, without a copy."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.05)
        self.kept: list[Tensor] = []

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        self.kept.append(self.param_groups[0]["params"][0].grad)


def loss_fn(model: nn.Module, batch: list[Tensor]) -> Tensor:
    loss = mse_loss(model(batch[0]), batch[0].sum(1, keepdim=True))
    return loss.bfloat16() if CASE == "half" else loss


model = Model().double() if CASE == "huge" else Model()
if CASE == "huge":
    inputs = inputs.double() * 1e50
optimizer = Keeping(model.parameters()) if CASE == "kept" else torch.optim.SGD(model.parameters(), lr=0.05)
trainer = vf.Trainer(
    model,
    optimizer,
    loss_fn,
    batch_size=257 if CASE == "half" else 8,
    virtual_nodes=[129, 128] if CASE == "half" else 4,
    reduction="fast" if CASE == "nan" else "exact",
    clip_grad_norm=1.0,
    grad_scaler=torch.amp.GradScaler("cuda" if torch.cuda.is_available() else "cpu", init_scale=256.0)
    if CASE == "scaler"
    else None,
    sampler=lambda epoch: [i % len(inputs) for i in range(3 if epoch == 0 else 257 if CASE == "half" else len(inputs))],
)
places = []
for _ in trainer.epochs(3):
    for batch in trainer.batches(TensorDataset(inputs)):
        trainer.step(batch)
        places.append(model.first.weight.grad.data_ptr())
if trainer.is_lead:
    if CASE == "kept":
        print(torch.stack(optimizer.kept).double().sum().item().hex())
    # A thread of gloo's that lets go of the sums late makes them move once, not in every step. They move if somebody
    # keeps them, and where an accelerator has them is torch's business.
    moves = sum(before != after for before, after in itertools.pairwise(places))
    stays = moves <= len(places) // 4 or CASE == "kept" or model.first.weight.is_cuda
    print(stays, trainer.digest())
