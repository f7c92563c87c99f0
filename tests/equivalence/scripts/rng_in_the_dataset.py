"""A dataset that augments with a numpy generator of its own, as numpy recommends.

Refused: HiddenStateError "Its examples were others"
"""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

import virtualflow as vf

vf.seed(0)


class Noisy(Dataset):
    def __init__(self, size):
        self.rng = np.random.default_rng(42)
        self.x = self.rng.normal(size=(size, 10)).astype(np.float32)
        self.y = self.rng.integers(0, 3, size)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = self.x[index] + 0.1 * self.rng.normal(size=10).astype(np.float32)
        return x, self.y[index]


data = Noisy(44)
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
