"""A dropout rate that is set at the top of each epoch and set back."""

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


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for _epoch in trainer.epochs(3):
    model[2].p = 0.5  # strong dropout in the first step of each epoch
    for _number, batch in enumerate(trainer.batches(data)):
        trainer.step(batch)
        model[2].p = 0.1
print(trainer.digest())
