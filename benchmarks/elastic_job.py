"""What the elastic benchmarks train, under ``vf run``: an MLP whose size is an argument."""

import sys
import timeit
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import virtualflow as vf
from virtualflow.train import solo


def build(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def data() -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return torch.utils.data.TensorDataset(
        torch.randn(4096, 64, generator=generator), torch.randint(0, 10, (4096,), generator=generator)
    )


if __name__ == "__main__":
    width, epochs = (int(argument) for argument in sys.argv[1:3])
    vf.seed(0)
    model = build(width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    trainer = vf.Trainer(model, optimizer, lambda m, b: cross_entropy(m(b[0]), b[1]), batch_size=64, virtual_nodes=8)
    examples = data()
    for _ in trainer.epochs(epochs):
        for batch in trainer.batches(examples):
            trainer.step(batch)
    if len(sys.argv) > 3 and trainer.is_lead:  # what a step asks its ear for changes, timed alone
        ear = solo.current()
        asks = lambda: (ear.must_stop, ear.seen, ear.all_have_seen(ear.seen), ear.change_is_due, ear.changes[0:])  # noqa: E731
        Path(sys.argv[3], "listening").write_text(str(min(timeit.repeat(asks, number=1000, repeat=5)) / 1000))
