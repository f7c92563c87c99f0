"""A sampler that draws by weights in a state, which change in each step."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

import virtualflow as vf

vf.seed(0)


class Big(Dataset):
    def __len__(self):
        return 300_000

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(int(i))
        return torch.randn(10, generator=g), i % 3


data = Big()
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loss_fn(model, batch):
    return cross_entropy(model(batch[0]), batch[1])


s = vf.State(weights=torch.ones(300_000))


def sampler(epoch):
    return torch.multinomial(s.weights, 44).tolist()


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, state=[s], sampler=sampler)
for _epoch in trainer.epochs(3):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
        s.weights[:100_000] *= 1 + loss
print(trainer.digest())
