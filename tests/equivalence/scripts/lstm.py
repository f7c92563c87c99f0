"""Sequences through an LSTM of two layers with dropout between them.

Other bits on accelerators: a layer is another kernel there than the CPU's, which is oneDNN's
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randint(0, 20, (44, 9)), torch.randint(0, 3, (44,)))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.body = nn.LSTM(8, 12, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(12, 3)

    def forward(self, words):
        states, _ = self.body(self.embedding(words))
        return self.head(states[:, -1])


model = Reader()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)


def loss_fn(model, batch):
    *inputs, labels = batch
    return cross_entropy(model(*inputs), labels)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, clip_grad_norm=1.0)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
