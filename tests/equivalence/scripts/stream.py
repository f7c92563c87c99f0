"""A stream of generators that draw, shuffled in blocks, augmented when it is used, and with a batch that grows."""

import random

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import virtualflow as vf

vf.seed(0)


def examples(shard):
    for number in range(7 + shard % 3):
        yield torch.randn(10) + number / 10, number % 3


def noisy(example):
    inputs, label = example
    return inputs + 0.1 * torch.randn(10) + random.random() * float(np.random.rand()), label


data = vf.Stream(examples, shards=8, examples=[7 + shard % 3 for shard in range(8)], block=3).map(noisy)
model = nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size={0: 8, 1: 12}, virtual_nodes=4)
for epoch in trainer.epochs(3):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
