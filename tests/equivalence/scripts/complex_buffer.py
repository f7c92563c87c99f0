"""A running mean spectrum of the inputs in a complex buffer."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))
        self.register_buffer("spectrum", torch.ones(6, dtype=torch.complex64))

    def forward(self, inputs):
        spectrum = torch.fft.rfft(inputs)
        if self.training:
            self.spectrum.lerp_(spectrum.detach().mean(dim=0), 0.1)
        return self.body(torch.fft.irfft(spectrum * self.spectrum.conj(), n=10))


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
