"""RAdam: its first steps go without the adaptive part.

Other bits on accelerators: torch updates lists of tensors there, which rounds otherwise for RAdam
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
model = nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 3))
optimizer = torch.optim.RAdam(model.parameters(), lr=1e-2)


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
