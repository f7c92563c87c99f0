"""Sequences through a GRU in both directions, packed by length.

Other bits on accelerators: a cell is one kernel there, which adds in another order
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
lengths = torch.randint(2, 10, (44,))
data = TensorDataset(torch.randint(0, 20, (44, 9)), lengths, torch.randint(0, 3, (44,)))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.body = nn.GRU(8, 12, bidirectional=True, batch_first=True)
        self.head = nn.Linear(24, 3)

    def forward(self, words, lengths):
        packed = pack_padded_sequence(self.embedding(words), lengths.cpu(), batch_first=True, enforce_sorted=False)
        _, last = self.body(packed)
        return self.head(torch.cat([last[0], last[1]], dim=1))


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
