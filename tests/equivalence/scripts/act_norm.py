"""A flow whose ActNorm takes its first values from the first batch that it sees.

Refused: HiddenStateError "wrote to the parameter"
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10) * 3 + 1)


class ActNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.shift, self.scale = nn.Parameter(torch.zeros(size)), nn.Parameter(torch.ones(size))
        self.register_buffer("initialised", torch.tensor(0, dtype=torch.uint8))

    def forward(self, x):
        if self.training and self.initialised == 0:
            self.shift.data.copy_(-x.mean(0))
            self.scale.data.copy_(1 / (x.std(0) + 1e-6))
            self.initialised.fill_(1)
        return (x + self.shift) * self.scale, self.scale.abs().log().sum()


model = ActNorm(10)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)


def loss_fn(model, batch):
    z, logdet = model(batch[0])
    return 0.5 * (z**2).sum(1).mean() - logdet


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
