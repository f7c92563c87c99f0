"""Several labels for each example, with binary cross entropy."""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 2, (44, 5)).float())
model = nn.Sequential(nn.Linear(10, 16), nn.LayerNorm(16), nn.SiLU(), nn.Linear(16, 5))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
weights = torch.tensor([1.0, 3.0, 1.0, 1.0, 2.0])


def loss_fn(model, batch):
    inputs, labels = batch
    return binary_cross_entropy_with_logits(model(inputs), labels, pos_weight=weights.to(inputs.device))


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
