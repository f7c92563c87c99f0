"""Images of digits, drawn from a font of 5 x 7 dots: shifted, faded and noisy, and the same on every machine."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

SIDE = 8
FONT = (  # a digit a line, its seven rows as 5 bits each
    (14, 17, 19, 21, 25, 17, 14),
    (4, 12, 4, 4, 4, 4, 14),
    (14, 17, 1, 2, 4, 8, 31),
    (31, 2, 4, 2, 1, 17, 14),
    (2, 6, 10, 18, 31, 2, 2),
    (31, 16, 30, 1, 1, 17, 14),
    (6, 8, 16, 30, 17, 17, 14),
    (31, 1, 2, 4, 8, 8, 8),
    (14, 17, 17, 14, 17, 17, 14),
    (14, 17, 17, 15, 1, 2, 12),
)


def drawn_digits(count: int, seed: int) -> TensorDataset:
    """*count* images of 8 x 8 pixels, and the digits that they show."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    glyphs = torch.stack([_glyph(rows) for rows in FONT])
    images = torch.zeros(count, 1, SIDE, SIDE)
    for image, label in zip(images, labels.tolist(), strict=True):
        down, right = (int(torch.randint(most, (), generator=generator)) for most in (2, 2))
        image[0, down : down + 7, right : right + 5] = glyphs[label]
    strength = 0.5 + 0.5 * torch.rand(count, 1, 1, 1, generator=generator)
    noise = 0.1 * torch.randn(images.shape, generator=generator)
    return TensorDataset(images * strength + noise, labels)


def _glyph(rows: tuple[int, ...]) -> Tensor:
    return torch.tensor([[(row >> bit) & 1 for bit in range(4, -1, -1)] for row in rows], dtype=torch.float32)
