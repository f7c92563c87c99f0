"""A tuple in the model that the loop replaces."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(10, 16), nn.Linear(16, 3)
        self.gains = (1.0, 1.0)

    def forward(self, x):
        return self.gains[1] * self.b(self.gains[0] * self.a(x).relu())


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loss_fn(model, batch):
    return cross_entropy(model(batch[0]), batch[1])


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for _epoch in trainer.epochs(3):
    for batch in trainer.batches(data):
        trainer.step(batch)
        model.gains = (model.gains[0] * 0.97, model.gains[1] * 1.01)  # annealed by the loop
print(trainer.digest())
