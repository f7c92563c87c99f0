"""Augmentation in two loader processes, from torch, random and numpy."""

import random

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

import virtualflow as vf

vf.seed(0)


class Images(Dataset):
    def __init__(self, examples):
        self.images = torch.randn(examples, 1, 8, 8)
        self.labels = torch.randint(0, 3, (examples,))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        if random.random() < 0.5:
            image = image.flip(-1)
        image = image.roll(int(np.random.randint(-2, 3)), dims=-2)
        return image + 0.1 * torch.randn(image.shape), self.labels[index]


data = Images(44)
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loss_fn(model, batch):
    images, labels = batch
    return cross_entropy(model(images), labels)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, loader_workers=2)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
