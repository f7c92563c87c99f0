"""An optimizer that estimates its learning rate (as D-Adaptation does): numbers and a tensor in its groups."""

import math

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))


class DAdaptSGD(torch.optim.Optimizer):
    def __init__(self, params, lr=1.0, d0=1e-3):
        super().__init__(params, {"lr": lr, "d": d0, "numerator": 0.0, "k": 0, "d_tensor": torch.tensor(d0)})
        self.history = []

    @torch.no_grad()
    def step(self, closure=None):
        group = self.param_groups[0]
        d, squared, weighted = group["d"], 0.0, 0.0
        for p in group["params"]:
            state = self.state[p]
            if not state:
                state["s"], state["x0"] = torch.zeros_like(p), p.detach().clone()
                if "g0_norm" not in group:
                    group["g0_norm"] = p.grad.norm().item()
            state["s"].add_(p.grad, alpha=d)
            squared += state["s"].square().sum().item()
            weighted += (p.grad * (state["x0"] - p)).sum().item()
        group["numerator"] += d * weighted
        if squared > 0:
            group["d"] = max(d, group["numerator"] / math.sqrt(squared))
        group["d_tensor"].fill_(group["d"])
        self.history.append(group["d"])
        for p in group["params"]:
            p.sub_(p.grad * group["d_tensor"] * group["lr"] * len(self.history) ** 0.5 / group["g0_norm"])
        group["k"] += 1


optimizer = DAdaptSGD(model.parameters())


def loss_fn(model, batch):
    return cross_entropy(model(batch[0]), batch[1])


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(3):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest(), optimizer.param_groups[0]["d"])
