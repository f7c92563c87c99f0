"""Self-training: after each epoch trainer.predict labels the rest, and what is sure joins the training set."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import ConcatDataset, TensorDataset

import virtualflow as vf

vf.seed(0)
labelled = TensorDataset(torch.randn(40, 10), torch.randint(0, 3, (40,)))
rest = torch.randn(30, 10)
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


def scores(model, batch):
    return model(batch[0]).softmax(1)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(3):
    data = labelled
    if epoch > 0:
        sure, guessed = trainer.predict(TensorDataset(rest), scores).max(1)
        chosen = sure > 0.5
        data = ConcatDataset([labelled, TensorDataset(rest[chosen], guessed[chosen])])
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}, {len(data)} examples")
print(trainer.digest())
