"""Mixup whose strength is drawn in the loop, from torch's global generator."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
model = nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
strength = 1.0


def loss_fn(model, batch):
    inputs, labels = batch
    order = torch.randperm(len(inputs), device=inputs.device)
    scores = model(strength * inputs + (1 - strength) * inputs[order])
    return strength * cross_entropy(scores, labels) + (1 - strength) * cross_entropy(scores, labels[order])


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        strength = torch.distributions.Beta(0.4, 0.4).sample().item()
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
