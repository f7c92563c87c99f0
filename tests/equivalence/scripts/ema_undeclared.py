"""An exponential moving average in a class of the script's own that nobody told the job of.

Warned when resumed: "'ema.shadow' had changed by then"
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


class EMA:
    def __init__(self, model, decay):
        self.model, self.decay = model, decay
        self.shadow = {name: p.data.clone() for name, p in model.named_parameters()}

    def update(self):
        for name, p in self.model.named_parameters():
            self.shadow[name] = self.decay * self.shadow[name] + (1 - self.decay) * p.data


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
ema = EMA(model, 0.9)  # on the device that the Trainer has moved the model to
for epoch in trainer.epochs(3):
    for batch in trainer.batches(data):
        loss = trainer.step(batch)
        ema.update()
    print(f"epoch {epoch}: loss {loss:.4f}")
print(trainer.digest(), sum(value.double().sum().item() for value in ema.shadow.values()))
