"""The three fixed settings of the speed figures: bound by compute, by both, and by updates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

VIRTUAL_NODES = 8
LENGTH = 64  # of a text, in bytes
Batch = list[Tensor]


class Endless(Dataset[tuple[Tensor, Tensor]]):
    """A few random examples, repeated: an epoch outlasts the benchmark, so no epoch's end falls into it."""

    def __init__(self, inputs: Tensor, targets: Tensor, length: int = 1_000_000) -> None:
        self._inputs, self._targets, self._length = inputs, targets, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        index %= len(self._inputs)
        return self._inputs[index], self._targets[index]


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())


@dataclass(frozen=True, slots=True)
class Setting:
    """A model, its data and the size of a virtual node."""

    name: str
    title: str
    node_size: int
    segment_steps: int  # steps of one timed segment, of a second or so
    model: Callable[[], nn.Module]
    dataset: Callable[[], Endless]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    loss: Callable[[nn.Module, Batch], Tensor] = cross_entropy


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.skip = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(inner)) + self.skip(x))


class ResNet(nn.Module):
    """The residual network for small images; three blocks a stage of width 16, 32 and 64 make ResNet-20."""

    def __init__(self, blocks: int = 3, width: int = 16, channels: int = 3, classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(channels, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        ]
        inputs = width
        for stage in range(3):
            for block in range(blocks):
                outputs = width << stage
                layers.append(Block(inputs, outputs, 2 if stage and not block else 1))
                inputs = outputs
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3)))


class GptLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.attention(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.norm2(x))


class Gpt(nn.Module):
    """A decoder over bytes, with the output tied to the embedding: 10.7 million parameters."""

    def __init__(
        self, layers: int = 6, width: int = 384, heads: int = 6, vocabulary: int = 256, length: int = LENGTH
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*(GptLayer(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return F.linear(self.norm(self.layers(x)), self.tokens.weight)


def mlp() -> nn.Module:
    """Six layers of 2048: 25 million parameters, and little to compute for 8 examples."""
    hidden = [layer for _ in range(5) for layer in (nn.Linear(2048, 2048), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(2048, 2048))


def _images() -> Endless:
    return Endless(torch.randn(512, 3, 32, 32), torch.randint(10, (512,)))


def _texts() -> Endless:
    tokens = torch.randint(256, (512, LENGTH + 1))
    return Endless(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def _vectors() -> Endless:
    return Endless(torch.randn(512, 2048), torch.randint(2048, (512,)))


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("resnet", "ResNet-20 of 0.27M, node size 32, SGD", 32, 1, ResNet, _images, _sgd),
        Setting("gpt", "GPT of 10.7M, 64 bytes, node size 4, AdamW", 4, 1, Gpt, _texts, _adamw),
        Setting("mlp", "MLP of 25M, node size 8, SGD", 8, 2, mlp, _vectors, _sgd),
    )
}
