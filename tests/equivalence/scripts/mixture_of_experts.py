"""A mixture of experts: each example goes to one of them, and some are rarely chosen."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))


class Experts(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.gate = nn.Linear(10, count)
        self.experts = nn.ModuleList(nn.Linear(10, 3) for _ in range(count))

    def forward(self, inputs):
        weight, chosen = self.gate(inputs).softmax(dim=1).max(dim=1)
        outputs = inputs.new_zeros(len(inputs), 3)
        for number, expert in enumerate(self.experts):
            mine = chosen == number
            if mine.any():
                outputs[mine] = weight[mine, None] * expert(inputs[mine])
        return outputs


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


model = Experts(8)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=0.01)
trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
