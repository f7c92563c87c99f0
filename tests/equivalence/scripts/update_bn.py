"""Stochastic weight averaging from the second epoch on, with torch's own update_bn over a DataLoader at the end.

Other bits on accelerators: torch averages lists of tensors there, which rounds otherwise
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
model = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
swa_model = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
swa_scheduler = SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


trainer = vf.Trainer(
    model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, state=[swa_model, scheduler, swa_scheduler]
)
for epoch in trainer.epochs(4):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    if epoch >= 1:
        swa_model.update_parameters(model)
        swa_scheduler.step()
    else:
        scheduler.step()
    print(f"epoch {epoch}: loss {loss:.4f}")
device = model[0].weight.device
update_bn(DataLoader(data, batch_size=8, shuffle=True), swa_model, device)
swa_model.eval()
print(trainer.digest(), swa_model(data.tensors[0].to(device)).sum().item())
