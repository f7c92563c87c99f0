"""A float64 model with tiny and huge gradients, checked against plain torch: each step is one pass over the data."""

import copy

import torch
from torch import nn
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
inputs, answers = torch.randn(24, 10).double(), torch.randn(24, 2).double()
data = TensorDataset(inputs, answers)


class Scales(nn.Module):
    def __init__(self):
        super().__init__()
        self.tiny = nn.Linear(10, 1).double()
        self.huge = nn.Linear(10, 1).double()

    def forward(self, inputs):
        return torch.cat([self.tiny(inputs), self.huge(inputs)], dim=1)


def loss_fn(model, batch):
    inputs, answers = batch
    return ((model(inputs) - answers) ** 2 * torch.tensor([1e-60, 1e60], dtype=torch.float64).to(inputs.device)).mean()


def optimizer_of(model):
    return torch.optim.SGD(
        [{"params": model.tiny.parameters(), "lr": 1e59}, {"params": model.huge.parameters(), "lr": 1e-61}]
    )


model = Scales()
plain = copy.deepcopy(model)
trainer = vf.Trainer(model, optimizer_of(model), loss_fn, batch_size=24, virtual_nodes=4)
for _ in trainer.epochs(8):
    for batch in trainer.batches(data):
        trainer.step(batch)

optimizer = optimizer_of(plain)
for _ in range(8):
    optimizer.zero_grad()
    loss_fn(plain, (inputs, answers)).backward()
    optimizer.step()
for (name, one), other in zip(model.named_parameters(), plain.parameters(), strict=True):
    assert torch.allclose(one.cpu(), other, rtol=1e-9), f"{name} is not what plain torch gives"
print(trainer.digest())
