"""An embedding trained on triplets: anchor, positive, negative."""

import torch
from torch import nn
from torch.utils.data import Dataset

import virtualflow as vf

vf.seed(0)


class Triplets(Dataset):
    def __init__(self, examples):
        self.points = torch.randn(examples, 10)
        self.labels = torch.randint(0, 3, (examples,))

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        same = torch.nonzero(self.labels == self.labels[index]).flatten()
        other = torch.nonzero(self.labels != self.labels[index]).flatten()
        positive = same[torch.randint(len(same), ())]
        negative = other[torch.randint(len(other), ())]
        return self.points[index], self.points[positive], self.points[negative]


model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
criterion = nn.TripletMarginLoss(margin=1.0)


def loss_fn(model, batch):
    anchors, positives, negatives = batch
    return criterion(model(anchors), model(positives), model(negatives))


data = Triplets(44)
trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
