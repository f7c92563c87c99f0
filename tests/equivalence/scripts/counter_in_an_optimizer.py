"""An optimizer that counts in a dict of its own."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))


model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))


class WarmSGD(torch.optim.Optimizer):
    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})
        self.progress = {"step": 0}

    @torch.no_grad()
    def step(self, closure=None):
        self.progress["step"] += 1
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"] * min(1, self.progress["step"] / 20))


optimizer = WarmSGD(model.parameters())


def loss_fn(model, batch):
    return cross_entropy(model(batch[0]), batch[1])


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for _epoch in trainer.epochs(3):
    for batch in trainer.batches(data):
        trainer.step(batch)
print(trainer.digest())
