"""Contrastive learning: two views of each image, told apart from the others in their shard (SimCLR)."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.utils.data import Dataset

import virtualflow as vf

vf.seed(0)


class Views(Dataset):
    def __init__(self, examples):
        self.images = torch.randn(examples, 12)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        return image + 0.1 * torch.randn(12), image * (torch.rand(12) > 0.2)


model = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loss_fn(model, batch):
    one, other = (normalize(model(views), dim=1) for views in batch)
    similar = one @ other.T / 0.2
    answers = torch.arange(len(similar), device=similar.device)
    return (cross_entropy(similar, answers) + cross_entropy(similar.T, answers)) / 2


data = Views(60)
trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=12, virtual_nodes=3)
for epoch in trainer.epochs(3):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
