"""A student learns from a frozen teacher in eval mode, which has batch norm and dropout of its own."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
teacher = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 3))
teacher.eval().requires_grad_(False)
student = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)


def loss_fn(student, batch):
    inputs, labels = batch
    scores = student(inputs)
    with torch.no_grad():
        taught = log_softmax(teacher(inputs) / 2, dim=1)
    soft = kl_div(log_softmax(scores / 2, dim=1), taught, log_target=True, reduction="batchmean")
    return cross_entropy(scores, labels) + 4 * soft


trainer = vf.Trainer(student, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
teacher.to(student[0].weight.device)  # which the Trainer has chosen
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
