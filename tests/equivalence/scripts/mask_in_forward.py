"""Attention whose causal mask is registered as a buffer in the first forward."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randint(0, 20, (44, 8)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.mix = nn.Linear(16, 48)
        self.output = nn.Linear(16, 20)

    def forward(self, tokens):
        if not hasattr(self, "mask"):
            length = tokens.shape[1]
            self.register_buffer("mask", torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril())
        query, key, value = self.mix(self.embedding(tokens)).chunk(3, dim=-1)
        scores = (query @ key.transpose(1, 2) / 4).masked_fill(~self.mask, float("-inf"))
        return self.output(scores.softmax(dim=-1) @ value)


def loss_fn(model, batch):
    (tokens,) = batch
    return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


model = Attention()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
