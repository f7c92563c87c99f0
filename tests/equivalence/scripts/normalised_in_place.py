"""A dataset that normalises its examples in place, so that each call changes what the next one gets.

Refused: HiddenStateError "Its examples were others"
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

import virtualflow as vf

vf.seed(0)


class Images(Dataset):
    def __init__(self):
        self.x, self.y = torch.rand(44, 10) * 4, torch.randint(0, 3, (44,))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = self.x[index]
        x -= 0.5
        x /= 0.9
        return x, self.y[index]


data = Images()
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
