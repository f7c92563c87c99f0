"""Stochastic weight averaging from the second epoch on, with its own schedule.

Other bits on accelerators: torch averages lists of tensors there, which rounds otherwise
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
model = nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
average = torch.optim.swa_utils.AveragedModel(model)
schedule = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.02, anneal_epochs=2)


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, state=[average, schedule])
for epoch in trainer.epochs(3):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    if epoch >= 1:
        average.update_parameters(model)
        schedule.step()
    print(f"epoch {epoch}: loss {loss:.4f}")
weight = sum(p.double().sum().item() for p in average.parameters())
print(trainer.digest(), weight)
