"""Workers make the same collective calls in the same order, and hear of it when they do not."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from virtualflow.core.mapping import DeviceId
from virtualflow.core.membership import Group, Work
from virtualflow.errors import CollectiveError

CALLS = ("Trainer", "step", "evaluate", "predict", "save", "export", "load", "end of the script")


class Agreement:
    """Compares the calls of all workers, without a round trip where there is work to do meanwhile."""

    def __init__(self, group: Group | None, devices: Sequence[DeviceId]) -> None:
        self._group = group
        self._devices = devices

    def begin(self, call: str, number: int = 0, detail: int = 0) -> Pending:
        """Announce a *call*; ``check`` the result before the first collective that belongs to it."""
        if self._group is None:
            return Pending(None, [], self._devices)
        mine = torch.tensor([CALLS.index(call), number, detail], dtype=torch.int64)
        everyone = [torch.empty_like(mine) for _ in range(self._group.size)]
        return Pending(self._group.gather(mine, everyone), everyone, self._devices)

    def check(self, call: str, number: int = 0, detail: int = 0) -> None:
        """Announce a *call* and wait until all workers have made it."""
        self.begin(call, number, detail).check()

    def devices_that_differ(self, value: int) -> list[DeviceId]:
        """The devices whose *value* is not the lead's."""
        if self._group is None:
            return []
        everyone = [torch.empty(1, dtype=torch.int64) for _ in range(self._group.size)]
        self._group.gather(torch.tensor([value]), everyone).wait()
        return [device for device, theirs in zip(self._devices, everyone, strict=True) if theirs != everyone[0]]

    def from_lead(self, value: int) -> int:
        """The lead's *value*."""
        if self._group is None:
            return value
        shared = torch.tensor([value])
        self._group.broadcast(shared).wait()
        return int(shared)


class Pending:
    """Calls that were announced and not compared yet."""

    def __init__(self, work: Work | None, calls: list[Tensor], devices: Sequence[DeviceId]) -> None:
        self._work = work
        self._calls = calls
        self._devices = devices

    def check(self) -> None:
        """Raise an error that names both calls if two workers made different ones."""
        if self._work is None:
            return
        self._work.wait()
        self._work = None
        first, *others = [tuple(call.tolist()) for call in self._calls]
        for device, call in zip(self._devices[1:], others, strict=True):
            if call != first:
                raise CollectiveError(
                    f"device {self._devices[0]} called {_name(first)} while device {device} called {_name(call)}. "
                    "Every worker must make the same calls with the same arguments in the same order: is one of "
                    "them behind `if trainer.is_lead`, or does it depend on something that differs by worker?"
                )


def _name(call: tuple[int, ...]) -> str:
    code, number, detail = call
    arguments = f", arguments {detail & 0xFFFF:04x}" if detail else ""
    return f"{CALLS[code]} (global step {number}{arguments})"
