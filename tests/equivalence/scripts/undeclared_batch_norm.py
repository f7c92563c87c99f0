"""A generator trained against a discriminator with batch norm, which nobody declared.

Refused: HiddenStateError "discriminator"
"""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 6))
generator = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
discriminator = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
discriminator.requires_grad_(False)
optimizer = torch.optim.Adam(generator.parameters(), lr=1e-2, betas=(0.5, 0.999))


def loss_fn(generator, batch):
    (noise,) = batch
    scores = discriminator(generator(noise))
    return binary_cross_entropy_with_logits(scores, torch.ones_like(scores))


trainer = vf.Trainer(generator, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
discriminator.to(generator[0].weight.device)  # which the Trainer has chosen
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
