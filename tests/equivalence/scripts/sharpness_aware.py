"""SAM: a second pass at shifted weights, and an update by hand."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
model = nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.gradients(batch)
        parameters = list(model.parameters())
        with torch.no_grad():
            norm = torch.nn.utils.get_total_norm([p.grad for p in parameters])
            shift = [0.05 * p.grad / (norm + 1e-12) for p in parameters]
            torch._foreach_add_(parameters, shift)
        trainer.gradients(batch)
        with torch.no_grad():
            torch._foreach_sub_(parameters, shift)
        optimizer.step()
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
