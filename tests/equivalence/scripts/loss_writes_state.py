"""A loss that keeps a running scale in the job's state.

Refused: HiddenStateError "loss_fn changes state[0]"
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))


model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

s = vf.State(scale=1.0)


def loss_fn(model, batch):
    loss = cross_entropy(model(batch[0]), batch[1])
    s.scale = 0.9 * s.scale + 0.1 * loss.item()
    return loss / s.scale


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, state=[s])
for _epoch in trainer.epochs(3):
    for batch in trainer.batches(data):
        trainer.step(batch)
print(trainer.digest())
