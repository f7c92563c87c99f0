"""How large the gradients are that this worker's virtual nodes make: measured before they are sent to be summed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from virtualflow.train.readback import Later, Readback
from virtualflow.train.scalars import bits_float, float_bits

_AT_ONCE = 1 << 20  # elements, where a second look needs memory of its own


class Magnitudes:
    """The largest magnitudes of the tensors of each virtual node since ``clear``. They are read with the rest."""

    def __init__(self) -> None:
        self._found: list[tuple[int, int, Tensor, float]] = []  # node, tensor, two numbers, times which factor
        self._nodes = 0

    def clear(self) -> None:
        self._found.clear()
        self._nodes = 0

    def begin_node(self) -> None:
        self._nodes += 1

    def note(self, tensor: int, value: Tensor, factor: float) -> None:
        """What the node has produced for *tensor*, a vector; times *factor*."""
        self._found.append((self._nodes - 1, tensor, _largest(value), factor))

    def peaks(self, readback: Readback) -> Later[dict[int, int]]:
        """For each tensor the bits of its largest finite value."""
        numbers = self._column(readback, 1)

        def peaks() -> dict[int, int]:
            found: dict[int, int] = {}
            for (_, tensor, _, factor), peak in zip(self._found, numbers(), strict=True):
                found[tensor] = max(found.get(tensor, -1), float_bits(peak * factor))
            return found

        return peaks

    def odd(self, readback: Readback) -> Later[list[int]]:
        """For each virtual node the last tensor with a value that is not finite, or -1."""
        numbers = self._column(readback, 0)

        def odd() -> list[int]:
            found = [-1] * self._nodes
            for (node, tensor, _, _), largest in zip(self._found, numbers(), strict=True):
                if not math.isfinite(largest):
                    found[node] = max(found[node], tensor)
            return found

        return odd

    def _column(self, readback: Readback, column: int) -> Later[list[float]]:
        if not self._found:
            return lambda: []
        pairs = torch.stack([pair for _, _, pair, _ in self._found])
        bits = readback.integers(pairs[:, column].contiguous().view(torch.int64))
        return lambda: [bits_float(value) for value in bits()]


def _largest(value: Tensor) -> Tensor:
    """The largest magnitude, not a number if there is one that is not, and the largest finite one."""
    if not value.numel():
        return torch.zeros(2, dtype=torch.float64, device=value.device)
    low, high = torch.aminmax(value.detach())  # many times as fast on a CPU as the norm that means the same
    largest = torch.maximum(low.abs(), high.abs()).double()
    if value.device.type == "cpu" and bool(largest.isfinite()):  # a device is not waited for
        return torch.stack([largest, largest])
    parts = [part.detach().abs().nan_to_num_(nan=0.0, posinf=0.0).max() for part in value.split(_AT_ONCE)]
    return torch.stack([largest, torch.stack(parts).max().double()])
