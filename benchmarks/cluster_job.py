"""What the jobs of the cluster benchmark train: small, so that emulated times leave room for the real ones."""

import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import virtualflow as vf

NODE_SIZE = 4

if __name__ == "__main__":
    steps, virtual_nodes, width = (int(argument) for argument in sys.argv[1:])
    vf.seed(0)
    generator = torch.Generator().manual_seed(0)
    batch_size = NODE_SIZE * virtual_nodes
    inputs = torch.randn(steps * batch_size, 32, generator=generator)
    teacher = torch.randn(32, 10, generator=generator)
    examples = torch.utils.data.TensorDataset(inputs, (inputs @ teacher).argmax(1))
    model = nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    trainer = vf.Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        lambda m, b: cross_entropy(m(b[0]), b[1]),
        batch_size=batch_size,
        virtual_nodes=virtual_nodes,
    )
    for _ in trainer.epochs(1):
        for batch in trainer.batches(examples):
            trainer.step(batch)
    digest = trainer.digest()
    if trainer.is_lead:
        print(f"digest {digest}")
