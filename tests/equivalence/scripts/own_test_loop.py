"""A test function of the script's own, as plain torch has it: it leaves the model in eval mode."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf

vf.seed(0)
data = TensorDataset(torch.randn(44, 10), torch.randint(0, 3, (44,)))
images, labels = torch.randn(19, 10), torch.randint(0, 3, (19,))
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_fn(model, batch):
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


def test():
    model.eval()
    device = next(model.parameters()).device
    with torch.no_grad():
        return (model(images.to(device)).argmax(1) == labels.to(device)).float().mean().item()


trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=8, virtual_nodes=4)
for epoch in trainer.epochs(2):
    for batch in trainer.batches(data):
        trainer.step(batch)
    print(f"epoch {epoch}: accuracy {test():.1%}")
print(trainer.digest())
