"""Handwritten digits with plain PyTorch, on one device. Beside it, for `diff`: train_virtualflow.py, on any number."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)
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


def evaluate(dataset):
    model.eval()
    with torch.no_grad():
        results = [metric_fn(model, batch) for batch in DataLoader(dataset, batch_size=128)]
    model.train()
    return sum(total for total, _ in results) / sum(weight for _, weight in results)


loader = DataLoader(train_set, batch_size=128, shuffle=True)
for epoch in range(10):
    for batch in loader:
        optimizer.zero_grad()
        loss = loss_fn(model, batch)
        loss.backward()
        optimizer.step()
    schedule.step()
    accuracy = evaluate(test_set)
    print(f"epoch {epoch + 1:2}  loss {loss:.4f}  accuracy {accuracy:.1%}")
