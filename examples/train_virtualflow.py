"""Handwritten digits with VirtualFlow, on any number of devices. Beside it, for `diff`: train_torch.py, on one."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset, random_split

import virtualflow as vf

vf.seed(0)
images, labels = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
train_set, test_set = random_split(digits, [1437, 360])

model = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)


def loss_fn(model, batch):
    images, labels = batch
    return cross_entropy(model(images), labels)


def metric_fn(model, batch):
    images, labels = batch
    return (model(images).argmax(1) == labels).sum(), len(labels)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=128, virtual_nodes=8, state=[schedule])
for epoch in trainer.epochs(10):
    for batch in trainer.batches(train_set):
        loss = trainer.step(batch)
    schedule.step()
    accuracy = trainer.evaluate(test_set, metric_fn)
    print(f"epoch {epoch + 1:2}  loss {loss:.4f}  accuracy {accuracy:.1%}")
print("digest", trainer.digest())
