"""Early stopping that counts in plain variables, which a worker that joins does not have.

Refused when grown, killed: CollectiveError "vf.State"
Warned when resumed: "'best' had changed by then"
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
train_set = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
test_set = TensorDataset(torch.randn(19, 10), torch.randint(0, 3, (19,)))
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.15)


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


def test_loss(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels, reduction="sum"), len(labels)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
best, bad = float("inf"), 0
for epoch in trainer.epochs(20):
    for batch in trainer.batches(train_set):
        trainer.step(batch)
    loss = trainer.evaluate(test_set, test_loss)
    print(f"epoch {epoch}: test loss {loss:.4f}")
    if loss < best:
        best, bad = loss, 0
    else:
        bad += 1
    if bad >= 2:
        break
print(trainer.digest(), best)
