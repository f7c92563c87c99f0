"""A GradScaler and so few examples that some virtual nodes never have any."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(3, 10), torch.randint(0, 3, (3,)))
model = nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cuda" if torch.cuda.is_available() else "cpu", init_scale=2.0**10, growth_interval=3)


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, grad_scaler=scaler)
for _ in trainer.epochs(10):
    for batch in trainer.batches(data):
        trainer.step(batch)
print(trainer.digest(), scaler.get_scale())
