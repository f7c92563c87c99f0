"""Distillation: a network learns from a teacher that is the running average of its own past weights.

    python examples/distillation.py                # one device
    vf run --devices 2 examples/distillation.py    # two: the last line, the digest, is the same

The teacher is no part of the model that is trained. It is in `state=`, so a worker that joins, and a job that
resumes, has it. Needs `pip install 'virtualflow[examples]'`.
"""

import argparse
import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, softmax
from torch.utils.data import TensorDataset

import virtualflow as vf
from data import images

SOFTNESS = 2.0  # of what the teacher says


def network(pixels: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(pixels, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--examples", type=int, default=4096)
    parser.add_argument("--virtual-nodes", type=int, default=4)
    options = parser.parse_args()

    vf.seed(0)
    pixels, labels = (torch.from_numpy(part[: options.examples].copy()) for part in images(train=True))
    student = network(pixels[0].numel())
    teacher = copy.deepcopy(student).requires_grad_(False).eval()

    def loss_fn(model: nn.Module, batch: list[Tensor]) -> tuple[Tensor, dict[str, object]]:
        said = model(batch[0])
        wanted = softmax(teacher(batch[0]) / SOFTNESS, 1)
        loss = cross_entropy(said, batch[1]) + kl_div(log_softmax(said / SOFTNESS, 1), wanted, reduction="batchmean")
        return loss, {"accuracy": ((said.argmax(1) == batch[1]).sum(), len(said))}

    optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
    trainer = vf.Trainer(
        student, optimizer, loss_fn, batch_size=128, virtual_nodes=options.virtual_nodes, state=[teacher]
    )
    for epoch in trainer.epochs(options.epochs):
        for batch in trainer.batches(TensorDataset(pixels, labels)):
            loss = trainer.step(batch)
            with torch.no_grad():  # on every worker, from what all of them have
                for old, new in zip(teacher.state_dict().values(), student.state_dict().values(), strict=True):
                    old.lerp_(new, 0.05) if old.is_floating_point() else old.copy_(new)
        if trainer.is_lead:
            print(f"epoch {epoch}: loss {loss:.3f}, accuracy {loss.metrics['accuracy']:.1%}")
    digest = trainer.digest()
    if trainer.is_lead:
        print(f"digest {digest}")


if __name__ == "__main__":
    main()
