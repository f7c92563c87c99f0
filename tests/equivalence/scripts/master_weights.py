"""A bfloat16 model whose optimizer keeps float32 master weights."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10).bfloat16(), torch.randint(0, 3, (44,)))
model = nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Linear(16, 3)).bfloat16()


class MasterSGD(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.9):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["master"] = p.float()
                    state["momentum"] = torch.zeros_like(state["master"])
                state["momentum"].mul_(group["momentum"]).add_(p.grad.float())
                state["master"].sub_(state["momentum"], alpha=group["lr"])
                p.copy_(state["master"])


optimizer = MasterSGD(model.parameters(), lr=1e-3)


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs).float(), labels)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
