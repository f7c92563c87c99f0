"""Three small networks that see an image of 8 x 8 pixels, and what there is to get wrong in each."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from virtualflow.selftest.programs.drawn_digits import SIDE

LARGE = 272  # with 1024 inputs more than a mebibyte: what is larger moves from device to device


def mlp(width: int) -> nn.Module:
    """Matrix products alone."""
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, width), nn.ReLU(), nn.Linear(width, 10))


def convnet(width: int) -> nn.Module:
    """Convolutions, batch norm with its running averages, dropout, and a tensor that is large."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Flatten(),
        nn.Linear(2 * width * (SIDE // 2) ** 2, LARGE),
        nn.ReLU(),
        nn.Linear(LARGE, 10),
    )


class Transformer(nn.Module):
    """Attention over an image's rows, layer norm, and dropout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.rows = nn.Linear(SIDE, width)
        self.places = nn.Parameter(0.02 * torch.randn(SIDE, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.rows(images.squeeze(1)) + self.places
        scores: Tensor = self.head(self.layers(tokens).mean(1))
        return scores


NETWORKS: dict[str, Callable[[int], nn.Module]] = {"mlp": mlp, "convnet": convnet, "transformer": Transformer}
