"""MAML: an inner step by torch.func for each task of the shard, and vmap over tasks."""

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import Dataset

import virtualflow as vf

vf.seed(0)


class Sines(Dataset):
    def __len__(self):
        return 44

    def __getitem__(self, index):
        phase, height = torch.rand(1) * 3, torch.rand(1) + 0.5
        x = torch.rand(10, 1) * 10 - 5
        y = height * torch.sin(x + phase)
        return x[:5], y[:5], x[5:], y[5:]


model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def loss_fn(model, batch):
    def error(parameters, x, y):
        return ((functional_call(model, parameters, (x,)) - y) ** 2).mean()

    def task(x, y, x_test, y_test):
        parameters = dict(model.named_parameters())
        gradients = grad(error)(parameters, x, y)
        adapted = {name: parameters[name] - 0.1 * gradients[name] for name in parameters}
        return error(adapted, x_test, y_test)

    return vmap(task)(*batch).mean()


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(3):
    for batch in trainer.batches(Sines()):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
