"""Dataclasses in a list in a dataclass."""

import dataclasses

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
test = TensorDataset(torch.randn(19, 10), torch.randint(0, 3, (19,)))


def test_loss(model, batch):
    return cross_entropy(model(batch[0]), batch[1], reduction="sum"), len(batch[1])


model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loss_fn(model, batch):
    return cross_entropy(model(batch[0]), batch[1])


@dataclasses.dataclass
class Record:
    epoch: int
    loss: float


@dataclasses.dataclass
class Progress:
    records: list = dataclasses.field(default_factory=list)
    best: Record | None = None


progress = Progress()
trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, state=[progress])
for epoch in trainer.epochs(3):
    for batch in trainer.batches(data):
        trainer.step(batch)
    progress.records.append(Record(epoch, trainer.evaluate(test, test_loss)))
    progress.best = min(progress.records, key=lambda r: r.loss)
    for group in optimizer.param_groups:
        group["lr"] = 0.05 / (1 + progress.best.epoch)
print(trainer.digest())
