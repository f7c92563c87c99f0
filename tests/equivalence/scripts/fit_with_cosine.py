"""Trainer.fit with a cosine schedule and a test set."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
train_set = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
test_set = TensorDataset(torch.randn(19, 10), torch.randint(0, 3, (19,)))
model = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


def accuracy(model, batch):
    inputs, labels = batch
    return (model(inputs).argmax(1) == labels).sum(), len(labels)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, state=[schedule])
trainer.fit(train_set, epochs=3, schedule=schedule, test_set=test_set, metric_fn=accuracy)
print(trainer.digest())
