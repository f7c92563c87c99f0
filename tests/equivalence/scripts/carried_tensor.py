"""A centre that the loop moves and loss_fn reads: a plain tensor, which a worker that joins begins anew.

Refused when grown, killed: ReplicaError "centre"
Warned when resumed: "'centre' had changed by then"
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
model = nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
centre = torch.zeros(3)


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs) - centre.to(inputs.device), labels)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(3):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
        centre = 0.9 * centre + 0.1 * model[2].bias.detach().cpu()
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
