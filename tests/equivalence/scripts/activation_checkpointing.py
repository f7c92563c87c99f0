"""Activations computed again in the backward (torch.utils.checkpoint), with dropout inside."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(10, 10), nn.LayerNorm(10), nn.Dropout(0.2), nn.GELU()) for _ in range(3)
        )
        self.head = nn.Linear(10, 3)

    def forward(self, inputs):
        for layer in self.layers:
            inputs = inputs + checkpoint(layer, inputs, use_reentrant=False)
        return self.head(inputs)


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


model = Deep()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
