"""Input noise whose scale is drawn at the top of each epoch: after the first, right after an evaluation."""

import random

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
test_set = TensorDataset(torch.randn(19, 10), torch.randint(0, 3, (19,)))
model = nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scale = 0.0


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs + scale * torch.randn_like(inputs)), labels)


def accuracy(model, batch):
    inputs, labels = batch
    return (model(inputs).argmax(1) == labels).sum(), len(labels)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(2):
    scale = random.uniform(0.0, 0.3)
    for batch in trainer.batches(data):
        trainer.step(batch)
    print(f"epoch {epoch}: accuracy {trainer.evaluate(test_set, accuracy):.1%}")
print(trainer.digest())
