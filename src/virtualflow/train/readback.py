"""Numbers that a step leaves on its device: collected while it runs, and read together, once.

Reading one of them makes the host wait until the device has done everything before it. One such wait a step is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from virtualflow.train.scalars import bits_float

Value = TypeVar("Value")
Later = Callable[[], Value]  # to be called after ``read``


class Readback:
    """What is to be read from the device."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []
        self._length = 0
        self._values: list[int] | None = None

    def integers(self, tensor: Tensor) -> Later[list[int]]:
        """The elements of a vector of integers."""
        begin, self._length = self._length, self._length + len(tensor)
        end = self._length
        self._parts.append(tensor.to(torch.int64))
        return lambda: self._read()[begin:end]

    def number(self, value: Tensor) -> Later[float]:
        """A number, as a float64."""
        bits = self.integers(value.detach().double().reshape(1).view(torch.int64))
        return lambda: bits_float(bits()[0])

    def read(self) -> None:
        """Wait for the device."""
        # One piece for each device, and there is one device; what is on the host already is not sent there.
        devices = {part.device for part in self._parts}
        read = {device: self._joined(device).tolist() for device in devices}
        taken = dict.fromkeys(devices, 0)
        self._values = []
        for part in self._parts:
            start = taken[part.device]
            taken[part.device] = start + len(part)
            self._values += read[part.device][start : start + len(part)]

    def _joined(self, device: torch.device) -> Tensor:
        return torch.cat([part for part in self._parts if part.device == device])

    def _read(self) -> list[int]:
        assert self._values is not None, "not read yet"
        return self._values
