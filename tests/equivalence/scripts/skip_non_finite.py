"""Batches with a loss that is not finite are skipped: except NonFiniteError: continue."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf
from virtualflow.errors import NonFiniteError

vf.seed(0)
inputs = torch.randn(60, 10)
inputs[17] = float("inf")
data = TensorDataset(inputs, torch.randint(0, 3, (60,)))
model = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        try:
            loss = trainer.step(batch)
        except NonFiniteError as error:
            print(error)
            continue
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
