"""A VQ-VAE whose codebook is moved by running averages in forward; codes that nobody uses are drawn anew."""

import torch
from torch import nn
from torch.nn.functional import mse_loss, one_hot
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10))


class Quantizer(nn.Module):
    def __init__(self, codes, size):
        super().__init__()
        self.register_buffer("codebook", torch.randn(codes, size))
        self.register_buffer("counts", torch.ones(codes))
        self.register_buffer("sums", self.codebook.clone())

    def forward(self, z):
        chosen = torch.cdist(z, self.codebook).argmin(1)
        codes = self.codebook[chosen]
        if self.training:
            with torch.no_grad():
                picked = one_hot(chosen, len(self.codebook)).float()
                self.counts.mul_(0.9).add_(picked.sum(0), alpha=0.1)
                self.sums.mul_(0.9).add_(picked.T @ z, alpha=0.1)
                self.codebook.copy_(self.sums / self.counts[:, None].clamp_min(1e-3))
                unused = self.counts < 0.3
                self.codebook[unused] = z[torch.randint(0, len(z), (int(unused.sum()),))]
        return z + (codes - z).detach(), mse_loss(z, codes.detach())


class VQVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.quantizer, self.decoder = nn.Linear(10, 4), Quantizer(6, 4), nn.Linear(4, 10)

    def forward(self, x):
        quantized, commitment = self.quantizer(self.encoder(x))
        return mse_loss(self.decoder(quantized), x) + 0.25 * commitment


model = VQVAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
trainer = vf.Trainer(model, optimizer, lambda model, batch: model(batch[0]), batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(3):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
