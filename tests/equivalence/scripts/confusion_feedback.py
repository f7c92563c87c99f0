"""A metric that counts errors in a tensor, which then weights the loss.

Refused: HiddenStateError "metric_fn uses 'wrong'"
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
test = TensorDataset(torch.randn(19, 10), torch.randint(0, 3, (19,)))


model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

weights, wrong = torch.ones(3), torch.zeros(3)


def loss_fn(model, batch):
    return cross_entropy(model(batch[0]), batch[1], weight=weights.to(batch[0].device))


def right(model, batch):
    hit = model(batch[0]).argmax(1) == batch[1]
    wrong.add_(torch.bincount(batch[1][~hit], minlength=3).cpu())
    return hit.sum(), len(hit)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
print(f"accuracy at first: {trainer.evaluate(test, right):.4f}")
for _epoch in trainer.epochs(3):
    for batch in trainer.batches(data):
        trainer.step(batch)
    wrong.zero_()
    trainer.evaluate(test, right)
    weights = 1 + wrong / wrong.sum().clamp(min=1)
print(trainer.digest())
