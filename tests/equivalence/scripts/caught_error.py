"""Whatever goes wrong in a batch is caught, and the batch is skipped: in loss_fn, in the dataset and before the update.

Each of them is raised by one virtual node only, so by one worker only.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import virtualflow as vf


class UnusableError(Exception):
    def __init__(self, row, why):  # which can't be made from its message alone
        super().__init__(f"row {row} is unusable: {why}")
        self.row = row


class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.inputs, self.labels = torch.randn(60, 10), torch.randint(0, 3, (60,))
        self.inputs[17], self.inputs[44] = 100.0, -100.0

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        if index == 29:
            raise FileNotFoundError(2, "No such file or directory", "row-29.png")
        return self.inputs[index], self.labels[index]


vf.seed(0)
data = Rows()
model = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def loss_fn(model, batch):
    inputs, labels = batch
    if inputs.max() > 50:
        raise FloatingPointError("an overflow")
    outputs = model(inputs)
    if inputs.min() < -50:
        raise UnusableError(44, "an underflow")
    return cross_entropy(outputs, labels), {"right": ((outputs.argmax(1) == labels).sum(), len(labels))}


def refuse_some(model):
    if trainer.global_step == 3 and not tried:
        tried.append(True)
        raise StopIteration("not this one")


tried = []
trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, on_gradients=refuse_some, state=[tried])
for _ in trainer.epochs(2):
    for batch in trainer.batches(data):
        try:
            trainer.step(batch)
        except (FileNotFoundError, UnusableError, FloatingPointError, StopIteration) as error:
            if getattr(error, "row", 44) != 44:
                raise
    try:
        trainer.evaluate(data, lambda model, batch: (model(batch[0]).sum(), len(batch[0])))
    except FileNotFoundError:
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
print(trainer.digest())
