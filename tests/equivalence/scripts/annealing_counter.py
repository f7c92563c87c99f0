"""A model that anneals its KL term by a number that forward counts up.

Refused: HiddenStateError "keeps something in 'calls'"
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(10, 8), nn.Linear(4, 10)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        mu, logvar = self.encode(x).chunk(2, dim=1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1)
        return ((self.decode(z) - x) ** 2).sum(1) + min(1.0, self.calls / 30) * kl


model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
trainer = vf.Trainer(model, optimizer, lambda model, batch: model(batch[0]).mean(), batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
