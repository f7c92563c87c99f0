"""An optimizer with integers in its state: how often the sign of each gradient has changed."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
model = nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 3))


class Cautious(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["sign"] = torch.zeros_like(p, dtype=torch.int8)
                    state["changes"] = torch.zeros_like(p, dtype=torch.int64)
                    state["steps"] = 0
                sign = p.grad.sign().to(torch.int8)
                state["changes"] += sign != state["sign"]
                state["sign"] = sign
                state["steps"] += 1
                p.sub_(group["lr"] * p.grad / state["changes"].clamp(min=1))


optimizer = Cautious(model.parameters(), lr=0.3)


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
