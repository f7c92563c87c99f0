"""A WGAN with gradient penalty (a gradient of a gradient); the generator is trained by an optimizer in state=."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10))
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 10))
critic = nn.Sequential(nn.Linear(10, 16), nn.Softplus(), nn.Linear(16, 1))
g_optimizer = torch.optim.RMSprop(generator.parameters(), lr=1e-3)
optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))


def critic_loss(critic, batch):
    (real,) = batch
    with torch.no_grad():
        fake = generator(torch.randn(len(real), 4, device=real.device))
    alpha = torch.rand(len(real), 1, device=real.device)
    between = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return critic(fake).mean() - critic(real).mean() + 10 * ((slope.norm(2, dim=1) - 1) ** 2).mean()


trainer = vf.Trainer(critic, optimizer, critic_loss, batch_size=8, virtual_nodes=4, state=[generator, g_optimizer])
for epoch in trainer.epochs(3):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
        if trainer.global_step % 2 == 0:
            g_optimizer.zero_grad()
            (-critic(generator(torch.randn(8, 4, device=critic[0].weight.device))).mean()).backward()
            g_optimizer.step()
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
