"""What the benchmarks on mixed device types train: small, so that emulated times leave room for the real ones."""

import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import virtualflow as vf

BATCH_SIZE, VIRTUAL_NODES = 128, 16

if __name__ == "__main__":
    steps = int(sys.argv[1])
    vf.seed(0)
    generator = torch.Generator().manual_seed(0)
    length = steps * BATCH_SIZE
    examples = torch.utils.data.TensorDataset(
        torch.randn(length, 32, generator=generator), torch.randint(0, 10, (length,), generator=generator)
    )
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    trainer = vf.Trainer(
        model,
        optimizer,
        lambda m, b: cross_entropy(m(b[0]), b[1]),
        batch_size=BATCH_SIZE,
        virtual_nodes=VIRTUAL_NODES,
    )
    for _ in trainer.epochs(1):
        for batch in trainer.batches(examples):
            trainer.step(batch)
    if trainer.is_lead:
        print(trainer.digest())
