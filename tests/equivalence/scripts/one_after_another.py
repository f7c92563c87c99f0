"""Two Trainers in one script, one after another: the second trains a head on what the first has learnt."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
body = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 10))
head = nn.Linear(10, 3)


def reconstruction(body, batch):
    inputs, _ = batch
    return ((body(inputs) - inputs) ** 2).mean()


def classification(head, batch):
    inputs, labels = batch
    with torch.no_grad():
        states = body(inputs)
    return cross_entropy(head(states), labels)


first = vf.Trainer(body, torch.optim.Adam(body.parameters(), lr=1e-2), reconstruction, batch_size=8, virtual_nodes=4)
for _ in first.epochs(2):
    for batch in first.batches(data):
        first.step(batch)
second = vf.Trainer(head, torch.optim.SGD(head.parameters(), lr=0.1), classification, batch_size=8, virtual_nodes=4)
for _ in second.epochs(2):
    for batch in second.batches(data):
        second.step(batch)
print(first.digest(), second.digest())
