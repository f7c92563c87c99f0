"""Generators of the script's own, used in the loop and listed in state=."""

import random

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
model = nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
chance, draws, generator = random.Random(1), np.random.default_rng(2), torch.Generator().manual_seed(3)
scale, shift, noise = 1.0, 0.0, torch.zeros(10)


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(scale * inputs + shift + noise.to(inputs.device)), labels)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, state=[chance, draws, generator])
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        scale = chance.uniform(0.8, 1.2)
        shift = float(draws.normal(0.0, 0.1))
        noise = 0.1 * torch.randn(10, generator=generator)
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
