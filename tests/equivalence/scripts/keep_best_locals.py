"""Evaluates after each epoch and saves the best model so far; the best accuracy is a plain variable.

Refused when grown, killed: CollectiveError "vf.State"
Warned when resumed: "'best' had changed by then"
"""

import os
import tempfile

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
train_set = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
test_set = TensorDataset(torch.randn(19, 10), torch.randint(0, 3, (19,)))
model = nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


def accuracy(model, batch):
    inputs, labels = batch
    return (model(inputs).argmax(1) == labels).sum(), len(labels)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
best = 0.0
with tempfile.TemporaryDirectory() as folder:
    for epoch in trainer.epochs(4):
        for batch in trainer.batches(train_set):
            trainer.step(batch)
        right = trainer.evaluate(test_set, accuracy)
        if right > best:
            best = right
            trainer.save(os.path.join(folder, "best.pt"))
        print(f"epoch {epoch}: accuracy {right:.1%}")
print(trainer.digest(), best)
