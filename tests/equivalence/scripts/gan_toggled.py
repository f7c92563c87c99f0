"""A GAN in one Trainer: loss_fn freezes the discriminator while the generator's loss is computed."""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10))


class GAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
        self.discriminator = nn.Sequential(nn.Linear(10, 16), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(16, 1))


gan = GAN()
optimizer = torch.optim.Adam(
    [{"params": gan.generator.parameters(), "lr": 1e-3}, {"params": gan.discriminator.parameters(), "lr": 4e-3}],
    betas=(0.5, 0.999),
)


def loss_fn(gan, batch):
    (real,) = batch
    fake = gan.generator(torch.randn(len(real), 4, device=real.device))
    for p in gan.discriminator.parameters():
        p.requires_grad_(False)
    scores = gan.discriminator(fake)
    generator_loss = bce(scores, torch.ones_like(scores))
    for p in gan.discriminator.parameters():
        p.requires_grad_(True)
    scores = gan.discriminator(torch.cat([real, fake.detach()]))
    labels = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)]).to(real.device)
    return generator_loss + bce(scores, labels)


trainer = vf.Trainer(gan, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
