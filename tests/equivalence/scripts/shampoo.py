"""Shampoo with roots that are computed every few steps, kept in the optimizer's state as lists of matrices."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))


def root(matrix):
    values, vectors = torch.linalg.eigh(matrix + 1e-4 * torch.eye(len(matrix), device=matrix.device))
    return vectors @ torch.diag(values.clamp_min(1e-6) ** -0.25) @ vectors.T


class Shampoo(torch.optim.Optimizer):
    def __init__(self, params, lr=0.05, every=4):
        super().__init__(params, {"lr": lr, "every": every})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["preconditioners"] = [
                        torch.zeros(size, size, dtype=torch.float64, device=p.device) for size in p.shape
                    ]
                    state["roots"] = [torch.eye(size, device=p.device) for size in p.shape]
                gradient = p.grad
                for axis, matrix in enumerate(state["preconditioners"]):
                    rows = gradient.movedim(axis, 0).reshape(p.shape[axis], -1).double()
                    matrix.add_(rows @ rows.T)
                    if state["step"] % group["every"] == 0:
                        state["roots"][axis] = root(matrix).float()
                    gradient = torch.tensordot(gradient, state["roots"][axis], dims=([0], [0]))
                state["step"] += 1
                p.sub_(gradient, alpha=group["lr"])


optimizer = Shampoo(model.parameters())


def loss_fn(model, batch):
    return cross_entropy(model(batch[0]), batch[1])


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(3):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
