"""A memory bank that starts as NaN.

Refused: HiddenStateError "starts with NaNs"
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

import virtualflow as vf

vf.seed(0)


class Indexed(Dataset):
    def __init__(self):
        self.x, self.y = torch.randn(44, 10), torch.randint(0, 3, (44,))

    def __len__(self):
        return 44

    def __getitem__(self, i):
        return self.x[i], self.y[i], i


data = Indexed()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(10, 8), nn.Linear(8, 3)
        self.register_buffer("bank", torch.full((44, 8), float("nan")))  # not seen yet

    def forward(self, x, i):
        h = self.a(x).relu()
        old = self.bank[i]
        pull = ((h - torch.where(old.isnan(), h.detach(), old)) ** 2).mean()
        with torch.no_grad():
            self.bank[i] = h.detach()
        return self.b(h), pull


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)


def loss_fn(model, batch):
    x, y, i = batch
    out, pull = model(x, i)
    return cross_entropy(out, y) + 0.1 * pull


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for _epoch in trainer.epochs(3):
    for batch in trainer.batches(data):
        trainer.step(batch)
print(trainer.digest())
