"""One optimizer for matrices, another for the rest, and gradients that are changed before the update."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
model = nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 3))
optimizers = [
    torch.optim.SGD([p for p in model.parameters() if p.dim() > 1], lr=0.1, momentum=0.9, nesterov=True),
    torch.optim.AdamW([p for p in model.parameters() if p.dim() < 2], lr=0.01),
]


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


def centred(model):
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.grad -= parameter.grad.mean(1, keepdim=True)


trainer = vf.Trainer(
    model, optimizers, loss_fn, batch_size=8, virtual_nodes=4, on_gradients=centred, clip_grad_norm=0.5
)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
