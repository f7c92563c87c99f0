"""Options of the command line made from a dataclass, by the types of its fields."""

import argparse
from dataclasses import dataclass, fields

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)


@dataclass
class Options:
    epochs: int = 2
    lr: float = 0.1
    momentum: float = 0.9


parser = argparse.ArgumentParser()
for field in fields(Options):
    parser.add_argument(f"--{field.name}", type=field.type, default=str(field.default))
options = Options(**vars(parser.parse_args()))
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
model = nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=options.momentum)


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(options.epochs):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
