"""ReduceLROnPlateau, stepped with the validation loss after each epoch."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
train_set = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
test_set = TensorDataset(torch.randn(21, 10), torch.randint(0, 3, (21,)))
model = nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.3)


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


def validation_loss(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels, reduction="sum"), len(labels)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4, state=[schedule])
for epoch in trainer.epochs(4):
    for batch in trainer.batches(train_set):
        trainer.step(batch)
    loss = trainer.evaluate(test_set, validation_loss)
    schedule.step(loss)
    print(f"epoch {epoch}: validation loss {loss:.4f}, learning rate {schedule.get_last_lr()[0]:.5f}")
print(trainer.digest(), f"{loss:.6f}")
