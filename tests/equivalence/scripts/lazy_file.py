"""A dataset that opens its file in the first call of __getitem__, and one that keeps what it has decoded."""

import os
import pathlib
import tempfile

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import ConcatDataset, Dataset, random_split

import virtualflow as vf

vf.seed(0)
folder = tempfile.mkdtemp()
path = os.path.join(folder, "data.npy")
np.save(path, np.random.default_rng(0).normal(size=(30, 10)).astype(np.float32))


class Lazy(Dataset):
    def __init__(self, path):
        self.path, self.file = path, None

    def __len__(self):
        return 30

    def __getitem__(self, index):
        if self.file is None:
            self.file = np.load(self.path, mmap_mode="r")
        return torch.from_numpy(self.file[index].copy()) + 0.1 * torch.randn(10), index % 3


class Cached(Dataset):
    def __init__(self, path):
        self.rows, self.cache = pathlib.Path(path).read_bytes(), {}

    def __len__(self):
        return 20

    def decode(self, index):
        return torch.tensor([float(byte) / 256 for byte in self.rows[100 + 10 * index : 110 + 10 * index]])

    def __getitem__(self, index):
        if index not in self.cache:
            self.cache[index] = self.decode(index)
        return self.cache[index], index % 3


data, _ = random_split(ConcatDataset([Lazy(path), Cached(path)]), [44, 6])
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))
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
