"""The mean loss of a bfloat16 model over 257 examples: more than bfloat16 can count."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
inputs, answers = torch.randn(320, 8).bfloat16(), torch.randn(320, 1).bfloat16()
data = TensorDataset(inputs, answers)
model = nn.Linear(8, 1).bfloat16()


def loss_fn(model, batch):
    inputs, answers = batch
    return ((model(inputs) - answers) ** 2).mean()


optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=320, virtual_nodes=[257, 31, 32])
for _ in trainer.epochs(8):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
print(f"loss {loss:.4f}")
print(trainer.digest())
