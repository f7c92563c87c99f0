"""Training by steps, pass after pass over a dataset, and a test every few steps."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
text = torch.randint(0, 20, (500,))
data, test = TensorDataset(text[:44], text[1:45]), TensorDataset(text[50:90], text[51:91])
model = nn.Sequential(nn.Embedding(20, 16), nn.Dropout(0.1), nn.Linear(16, 20))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 5))


def loss_fn(model, batch):
    return cross_entropy(model(batch[0]), batch[1])


def right(model, batch):
    return (model(batch[0]).argmax(1) == batch[1]).sum(), len(batch[1])


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, state=[schedule])
for batch in trainer.steps(12, data):
    loss = trainer.step(batch)
    schedule.step()
    if batch.step % 4 == 3:
        print(f"step {batch.step}: loss {loss:.4f}, right {trainer.evaluate(test, right):.3f}")
print(trainer.digest())
