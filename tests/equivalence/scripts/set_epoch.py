"""A dataset that is told the epoch (set_epoch), with two loader processes."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

import virtualflow as vf

vf.seed(0)


class HarderEachEpoch(Dataset):
    def __init__(self, examples):
        self.inputs = torch.randn(examples, 10)
        self.labels = torch.randint(0, 3, (examples,))
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index] + 0.2 * self.epoch * torch.randn(10), self.labels[index]


data = HarderEachEpoch(44)
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, loader_workers=2)
for epoch in trainer.epochs(3):
    data.set_epoch(epoch)
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
