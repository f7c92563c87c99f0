"""Warm restarts, stepped with the fraction of the epoch that has passed, by the batch.step."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=2)


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, state=[scheduler])
iters = 6
for epoch in trainer.epochs(3):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
        scheduler.step(epoch + batch.step / iters)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
