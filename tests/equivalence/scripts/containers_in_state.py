"""A dict, a list and a dataclass in state=: the learning rate follows what they hold."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
train_set = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
test_set = TensorDataset(torch.randn(19, 10), torch.randint(0, 3, (19,)))
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


def test_loss(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels, reduction="sum"), len(labels)


@dataclass
class Progress:
    best: float = float("inf")
    epoch: int = 0


history, counts, progress = [], {"steps": 0}, Progress()
trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, state=[history, counts, progress])
for epoch in trainer.epochs(4):
    for batch in trainer.batches(train_set):
        trainer.step(batch)
        counts["steps"] += 1
    history.append(trainer.evaluate(test_set, test_loss))
    if history[-1] < progress.best:
        progress.best, progress.epoch = history[-1], epoch
    for group in optimizer.param_groups:
        group["lr"] = 0.05 / (1 + counts["steps"] + len(history) + 10 * (epoch - progress.epoch))
print(trainer.digest(), counts, progress, history)
