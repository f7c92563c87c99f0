"""A target network that follows the model in the loop and that nobody declared (BYOL).

Refused: HiddenStateError "target"
"""

import copy

import torch
from torch import nn
from torch.nn.functional import cosine_similarity
from torch.utils.data import Dataset

import virtualflow as vf

vf.seed(0)


class Views(Dataset):
    def __init__(self, examples):
        self.images = torch.randn(examples, 12)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index] + 0.2 * torch.randn(12), self.images[index] + 0.2 * torch.randn(12)


encoder = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
target = copy.deepcopy(encoder).requires_grad_(False)
model = nn.Sequential(encoder, nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_fn(model, batch):
    one, other = batch
    return 2 - 2 * cosine_similarity(model(one), target(other)).mean()


data = Views(44)
trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
target.to(encoder[0].weight.device)  # which the Trainer has chosen
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
        for slow, fast in zip(target.parameters(), encoder.parameters(), strict=True):
            slow.data.lerp_(fast.data, 0.1)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
