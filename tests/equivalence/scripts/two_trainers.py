"""A GAN as two Trainers in one script, which take turns.

Refused when grown: MappingError "first Trainer"
Refused when resumed: CheckpointError "several Trainers"
"""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10))
generator = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 10))
discriminator = nn.Sequential(nn.Linear(10, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))


def discriminate(discriminator, batch):
    (real,) = batch
    with torch.no_grad():
        fake = generator(torch.randn_like(real))
    scores = discriminator(torch.cat([real, fake]))
    answers = torch.cat([torch.ones(len(real), 1), torch.zeros(len(fake), 1)]).to(real.device)
    return binary_cross_entropy_with_logits(scores, answers)


def deceive(generator, batch):
    (real,) = batch
    fake = generator(torch.randn_like(real))
    scores = discriminator(fake)
    return binary_cross_entropy_with_logits(scores, torch.ones_like(scores)) + 0.01 * mse_loss(fake, real)


critic = vf.Trainer(
    discriminator, torch.optim.Adam(discriminator.parameters(), lr=1e-2), discriminate, batch_size=8, virtual_nodes=4
)
forger = vf.Trainer(
    generator, torch.optim.Adam(generator.parameters(), lr=1e-2), deceive, batch_size=8, virtual_nodes=4
)
for epoch, _ in zip(critic.epochs(2), forger.epochs(2), strict=True):
    for one, other in zip(critic.batches(data), forger.batches(data), strict=True):
        critic.step(one)
        loss = forger.step(other)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(critic.digest(), forger.digest())
