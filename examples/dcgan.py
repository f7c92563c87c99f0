"""A DCGAN: two networks that train against each other, as two phases of one Trainer.

    python examples/dcgan.py                       # one device
    vf run --devices 2 examples/dcgan.py           # two: the last line, the digest, is the same

Trains on Fashion-MNIST (Debian: `apt-get install dataset-fashion-mnist`), or else on scikit-learn's digits. Needs
`pip install 'virtualflow[examples]'`.
"""

import argparse
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as binary_cross_entropy
from torch.nn.functional import interpolate
from torch.utils.data import TensorDataset

import virtualflow as vf
from data import images

NOISE = 32  # numbers from which the generator makes an image
SIZE = 16  # pixels of its side


def generator() -> nn.Module:
    return nn.Sequential(
        nn.ConvTranspose2d(NOISE, 64, 4, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 1, 4, stride=2, padding=1),
        nn.Tanh(),
    )


def discriminator() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(32, 64, 4, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.LeakyReLU(0.2),
        nn.Conv2d(64, 1, 4),
        nn.Flatten(),
    )


def drawn(models: Any, count: int, like: Tensor) -> Tensor:
    return models["generator"](torch.randn(count, NOISE, 1, 1, device=like.device))


def judging(models: Any, batch: list[Tensor]) -> tuple[Tensor, dict[str, Any]]:
    """The discriminator's loss: real images are real, drawn ones are not."""
    real = models["discriminator"](batch[0])
    fake = models["discriminator"](drawn(models, len(batch[0]), batch[0]).detach())
    loss = binary_cross_entropy(real, torch.ones_like(real)) + binary_cross_entropy(fake, torch.zeros_like(fake))
    return loss, {"fooled": ((fake > 0).sum(), len(fake))}


def drawing(models: Any, batch: list[Tensor]) -> Tensor:
    """The generator's loss: what it draws is taken for real."""
    judged = models["discriminator"](drawn(models, len(batch[0]), batch[0]))
    return binary_cross_entropy(judged, torch.ones_like(judged))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--examples", type=int, default=4096)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--virtual-nodes", type=int, default=4)
    options = parser.parse_args()

    vf.seed(0)
    pixels = torch.from_numpy(images(train=True)[0][: options.examples])
    dataset = TensorDataset(2 * interpolate(pixels, (SIZE, SIZE), mode="bilinear") - 1)
    models = {"generator": generator(), "discriminator": discriminator()}
    adam = {name: torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.5, 0.999)) for name, model in models.items()}
    phases = {"judge": (adam["discriminator"], judging), "draw": (adam["generator"], drawing)}
    trainer = vf.Trainer(models, phases, batch_size=options.batch_size, virtual_nodes=options.virtual_nodes)
    for epoch in trainer.epochs(options.epochs):
        for batch in trainer.batches(dataset):
            judged = trainer.step(batch, "judge")
            drew = trainer.step(batch, "draw")
        if trainer.is_lead:
            fooled = judged.metrics["fooled"]
            print(f"epoch {epoch}: discriminator {judged:.3f}, generator {drew:.3f}, fooled by {fooled:.0%}")
    digest = trainer.digest()
    if trainer.is_lead:
        print(f"digest {digest}")


if __name__ == "__main__":
    main()
