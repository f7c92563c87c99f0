"""CutMix in a collate_fn that draws from a generator of the script's own.

Refused: HiddenStateError "Its examples were others"
"""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset, default_collate

import virtualflow as vf

vf.seed(0)
rng = np.random.default_rng(7)
data = TensorDataset(torch.randn(44, 1, 8, 8), torch.randint(0, 3, (44,)))


def cutmix(examples):
    x, y = default_collate(examples)
    order = torch.from_numpy(rng.permutation(len(x)))
    size, left, top = rng.integers(1, 6), rng.integers(0, 3), rng.integers(0, 3)
    x[:, :, top : top + size, left : left + size] = x[order, :, top : top + size, left : left + size]
    return x, y, y[order], 1 - size * size / 64


model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loss_fn(model, batch):
    x, y, other, share = batch
    scores = model(x)
    return share * cross_entropy(scores, y) + (1 - share) * cross_entropy(scores, other)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, collate_fn=cutmix)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
