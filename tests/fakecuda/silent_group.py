"""One worker of two, without the other: what it launches, waits for and sends is that of a job on two devices."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from virtualflow.train.solo import Solo


class SilentGroup:
    """A group of two whose other worker adds nothing and sends nothing. Counts the bytes of what this one gives it."""

    rank, size, reaches_devices = 0, 2, True

    def __init__(self) -> None:
        self.bytes_of = {"cuda": 0, "cpu": 0}

    def sum(self, tensor: Tensor) -> SilentGroup:
        return self._given(tensor)

    def max(self, tensor: Tensor) -> SilentGroup:
        return self._given(tensor)

    def gather(self, tensor: Tensor, into: list[Tensor]) -> SilentGroup:
        for target in into:
            target.copy_(tensor)
        return self._given(tensor)

    def broadcast(self, tensor: Tensor, source: int) -> SilentGroup:
        return self._given(tensor)

    def wait(self) -> None:
        """A call has ended when it returns."""

    def settle(self) -> None:
        """Nothing is ever under way."""

    def _given(self, tensor: Tensor) -> SilentGroup:
        self.bytes_of[tensor.device.type] += tensor.nbytes
        return self


def one_of_two() -> Any:
    """A membership, for ``solo``, with such a group."""
    membership: Any = Solo()
    membership.devices, membership.group = ("0", "1"), SilentGroup()
    return membership
