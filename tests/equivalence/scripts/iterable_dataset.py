"""A stream of examples that has a length, but no example by number.

Refused: ConfigError "IterableDataset"
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import IterableDataset

import virtualflow as vf

vf.seed(0)


class Stream(IterableDataset):
    def __len__(self):
        return 44

    def __iter__(self):
        for number in range(44):
            yield torch.randn(10), number % 3


data = Stream()
model = nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 3))
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
