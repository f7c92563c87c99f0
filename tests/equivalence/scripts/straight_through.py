"""Custom autograd functions: a binary net with straight-through gradients, and a reversed gradient for domains."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)), torch.randint(0, 2, (44,)))


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= 1)


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.strength * gradient, None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.domain = nn.Linear(10, 32), nn.Linear(32, 3), nn.Linear(32, 2)

    def forward(self, x, strength):
        features = Sign.apply(self.body(x))
        return self.head(features), self.domain(Reverse.apply(features, strength))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for parameter in model.parameters():
    parameter.register_hook(lambda gradient: torch.clamp(gradient, -1.0, 1.0))
progress = {"strength": 0.0}


def loss_fn(model, batch):
    x, y, domain = batch
    scores, domains = model(x, progress["strength"])
    return cross_entropy(scores, y) + cross_entropy(domains, domain)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, state=progress)
for epoch in trainer.epochs(3):
    for batch in trainer.batches(data):
        progress["strength"] = min(1.0, trainer.global_step / 10)
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
