"""A sampler object of the script's own that draws as many of each class, with set_epoch; a growing curriculum."""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Sampler, TensorDataset

import virtualflow as vf

vf.seed(0)
labels = torch.randint(0, 3, (60,))
data = TensorDataset(torch.randn(60, 10), labels)


class BalancedSampler(Sampler):
    def __init__(self, labels):
        self.by_class = [np.flatnonzero(labels == c) for c in range(3)]
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 3 * min(10 + 3 * self.epoch, 18)

    def __iter__(self):
        rng = np.random.default_rng(1000 + self.epoch)
        drawn = np.concatenate([rng.choice(part, len(self) // 3) for part in self.by_class])
        return iter(rng.permutation(drawn).tolist())


sampler = BalancedSampler(labels.numpy())
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, sampler=sampler)
for epoch in trainer.epochs(4):
    sampler.set_epoch(epoch)
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
