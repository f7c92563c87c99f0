"""Two threads for each device, with embeddings and a scatter whose gradients add up."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0, threads_per_device=2)
data = TensorDataset(torch.randint(0, 50, (176, 64)), torch.randint(0, 3, (176,)))


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 64)
        self.scale = nn.Parameter(torch.ones(50, 64))
        self.head = nn.Linear(64, 3)

    def forward(self, words):
        return self.head((self.embedding(words) * self.scale[words]).mean(dim=1))


model = Bag()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=32, virtual_nodes=4)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
