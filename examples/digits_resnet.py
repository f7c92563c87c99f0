"""A small ResNet on scikit-learn's handwritten digits: the example of the README, to run.

    python examples/digits_resnet.py                     # one device
    vf run --devices 2 examples/digits_resnet.py         # two: the last line, the digest, is the same
    vf run --devices 3 examples/digits_resnet.py --epochs 5 --virtual-nodes 6

Needs `pip install 'virtualflow[examples]'`.
"""

import argparse
import random

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad, relu

import virtualflow as vf

TEST_EXAMPLES = 360  # the last of 1,797


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.first = convolution(channels_in, channels, stride)
        self.second = convolution(channels, channels)
        same = stride == 1 and channels_in == channels
        self.shortcut = nn.Identity() if same else convolution(channels_in, channels, stride, size=1)

    def forward(self, x: Tensor) -> Tensor:
        return relu(self.second(relu(self.first(x))) + self.shortcut(x))


class ResNet(nn.Module):
    """38,266 parameters, and batch norm after every convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = convolution(1, 16)
        self.blocks = nn.Sequential(Block(16, 16), Block(16, 32, stride=2), Block(32, 32))
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(relu(self.stem(x))).mean((2, 3)))


def convolution(channels_in: int, channels: int, stride: int = 1, size: int = 3) -> nn.Module:
    layer = nn.Conv2d(channels_in, channels, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(channels))


class Digits:
    """Images of 8 x 8 pixels and what they show; for training, each is shifted by up to one pixel."""

    def __init__(self, *, train: bool) -> None:
        images, labels = load_digits(return_X_y=True)
        part = slice(None, -TEST_EXAMPLES) if train else slice(-TEST_EXAMPLES, None)
        self.images = torch.tensor(images[part], dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
        self.labels = torch.tensor(labels[part])
        self.train = train

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.shifted(self.images[index]) if self.train else self.images[index], self.labels[index]

    def shifted(self, image: Tensor) -> Tensor:
        # Any generator will do: the Trainer seeds them all by epoch and example, so no device shifts it otherwise.
        down, right = random.randint(0, 2), random.randint(0, 2)
        return pad(image, (1, 1, 1, 1))[:, down : down + 8, right : right + 8]


def loss_fn(model: nn.Module, batch: list[Tensor]) -> Tensor:
    """A mean over the examples of one virtual node."""
    images, labels = batch
    return cross_entropy(model(images), labels)


def right_answers(model: nn.Module, batch: list[Tensor]) -> tuple[Tensor, int]:
    """How many, and out of how many: an accuracy, once the Trainer has summed both."""
    images, labels = batch
    return (model(images).argmax(1) == labels).sum(), len(labels)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small ResNet on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=256, help="the global batch (default: %(default)s)")
    parser.add_argument("--virtual-nodes", type=int, default=32, help="how many share it (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=0.4, help="at the start; follows a cosine (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reduction", choices=["exact", "fast"], default="exact")
    parser.add_argument("--loader-workers", type=int, default=0, help="processes that load ahead, for each device")
    parser.add_argument("--save", metavar="PATH", help="write a checkpoint here after each epoch")
    parser.add_argument("--load", metavar="PATH", help="continue from a checkpoint, on any number of devices")
    return parser.parse_args()


def main() -> None:
    given = options()
    vf.seed(given.seed)
    train_set, test_set = Digits(train=True), Digits(train=False)
    model = ResNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=given.lr, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=given.epochs)
    trainer = vf.Trainer(
        model,
        optimizer,
        loss_fn,
        batch_size=given.batch_size,
        virtual_nodes=given.virtual_nodes,
        state=[schedule],
        reduction=given.reduction,
        loader_workers=given.loader_workers,
    )
    if given.load:
        trainer.load(given.load)
    for epoch in trainer.epochs(given.epochs):
        losses = [trainer.step(batch) for batch in trainer.batches(train_set)]
        schedule.step()
        accuracy = trainer.evaluate(test_set, right_answers)
        if given.save:
            trainer.save(given.save)
        if trainer.is_lead:
            print(f"epoch {epoch + 1:2}  loss {sum(losses) / len(losses):.4f}  accuracy {accuracy:.1%}")
    # On every device, lead or not, because they work together on it.
    accuracy = trainer.evaluate(test_set, right_answers)
    if trainer.is_lead:
        print(f"accuracy {accuracy:.1%}")
        print(f"digest {trainer.digest()}")


if __name__ == "__main__":
    main()
