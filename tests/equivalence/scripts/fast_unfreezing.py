"""The backbone is unfrozen at the top of the second epoch, with the fast reduction and clipping.

Equal up to rounding.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
model = nn.Sequential(nn.Sequential(nn.Linear(10, 16), nn.ReLU()), nn.Linear(16, 3))
backbone, head = model
backbone.requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, reduction="fast", clip_grad_norm=0.5)
for epoch in trainer.epochs(2):
    if epoch >= 1:
        backbone.requires_grad_(True)
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
