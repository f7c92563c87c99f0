"""A deque that is put into a state in mid-run."""

import collections

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))


model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loss_fn(model, batch):
    return cross_entropy(model(batch[0]), batch[1])


s = vf.State(recent=None)
trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, state=[s])
for _epoch in trainer.epochs(3):
    if s.recent is None:
        s.recent = collections.deque(maxlen=4)
    for batch in trainer.batches(data):
        s.recent.append(trainer.step(batch))
        for group in optimizer.param_groups:
            group["lr"] = 0.05 / (1 + float(np.std(s.recent)))
print(trainer.digest())
