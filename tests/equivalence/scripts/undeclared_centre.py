"""Self-distillation with a centre that is updated in the loss and that nobody declared (DINO).

Refused: HiddenStateError "centre"
"""

import torch
from torch import nn
from torch.nn.functional import log_softmax, softmax
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


class Centre(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("value", torch.zeros(8))

    @torch.no_grad()
    def forward(self, taught):
        centred = softmax((taught - self.value) / 0.04, dim=1)
        self.value = 0.9 * self.value + 0.1 * taught.mean(dim=0)
        return centred


model = nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 8))
centre = Centre()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def loss_fn(model, batch):
    one, other = batch
    return -(centre(model(one)) * log_softmax(model(other) / 0.1, dim=1)).sum(dim=1).mean()


data = Views(44)
trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
centre.to(model[0].weight.device)  # which the Trainer has chosen
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest())
