"""Parameter groups with learning rates and weight decay of their own, under one schedule."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
model = nn.Sequential(nn.Linear(10, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(
    [
        {"params": model[0].parameters(), "lr": 1e-3},
        {"params": model[1].parameters(), "weight_decay": 0.0},
        {"params": model[3].parameters(), "lr": 3e-2, "betas": (0.8, 0.9)},
    ],
    lr=1e-2,
    weight_decay=0.1,
)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, state=[schedule])
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
        schedule.step()
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
