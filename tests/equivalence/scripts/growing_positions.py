"""A table of sinusoidal positions that is extended in forward whenever a longer text comes."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

import virtualflow as vf

vf.seed(0)
data = [(torch.randint(1, 20, (n,)), n % 3) for n in torch.randint(2, 24, (44,)).tolist()]


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 3)
        self.register_buffer("positions", self.table(4))

    def table(self, length):
        angles = torch.arange(length)[:, None] / 100 ** (torch.arange(0, 8, 2) / 8)
        return torch.cat([angles.sin(), angles.cos()], dim=1)

    def forward(self, words):
        if words.shape[1] > len(self.positions):
            self.positions = self.table(words.shape[1]).to(words.device)
        states = self.embedding(words) + self.positions[: words.shape[1]]
        return self.head(self.layer(states).mean(dim=1))


def collate(examples):
    texts, labels = zip(*examples, strict=True)
    return pad_sequence(texts, batch_first=True), torch.tensor(labels)


def loss_fn(model, batch):
    words, labels = batch
    return cross_entropy(model(words), labels)


model = Reader()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, collate_fn=collate)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
