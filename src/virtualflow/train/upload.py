"""Shards on their way to an accelerator: copied beside what it computes, from memory that the host keeps in place.

The host runs ahead of the device, so the next shard is copied while the current one is computed. Two shards are there
at most: a copy into the memory of the shard before the last waits, on the device, until that one is used up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from virtualflow.train.accumulate import is_dense

SLOTS = 2


class Upload:
    """Copies shards to *device*."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.stream = torch.Stream(device=device)
        self._slots: list[list[Tensor]] = [[] for _ in range(SLOTS)]  # the memory of the last shards
        self._used: list[torch.Event | None] = [None] * SLOTS
        self._turn = 0
        self._computing = torch.accelerator.current_stream(device)

    def __call__(self, batch: Any) -> Any:
        """*batch* with every tensor in it on the device, ready for what is launched from now on."""
        self._computing = computing = torch.accelerator.current_stream(self._device)
        last = (self._turn - 1) % SLOTS
        if not all(map(_is_free, self._slots[last])):
            self._slots[last] = []  # somebody has kept that shard, and may use it later than is known here
        self._used[last] = _recorded(self._device, computing)  # the last shard: whatever uses it is launched by now
        if (used := self._used[self._turn]) is not None:
            self.stream.wait_event(used)
        slot, self._slots[self._turn] = self._slots[self._turn], []
        memory = iter(slot)
        with self.stream:
            moved = self._moved(batch, memory)
        computing.wait_event(_recorded(self._device, self.stream))
        self._turn = (self._turn + 1) % SLOTS
        return moved

    def _moved(self, value: Any, memory: Iterator[Tensor]) -> Any:
        """*value* with a copy of every tensor in it, through any nesting of dicts, lists and tuples."""
        if isinstance(value, Tensor):
            return self._copied(value, next(memory, None))
        if hasattr(value, "to"):
            with self._computing:  # its memory is that stream's own
                return value.to(self._device)
        if isinstance(value, Mapping):
            return {key: self._moved(item, memory) for key, item in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self._moved(item, memory) for item in value))
        if isinstance(value, list | tuple):
            return type(value)(self._moved(item, memory) for item in value)
        return value

    def _copied(self, tensor: Tensor, memory: Tensor | None) -> Tensor:
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            with self._computing:
                return tensor.to(self._device)
        tensor = tensor if is_dense(tensor) else tensor.contiguous()
        if memory is None or not _is_free(memory) or _form(memory) != _form(tensor):
            memory = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self._device)
            memory.record_stream(self._computing)  # it is not given to another before that stream is done with it
        # A copy in any case: whose memory is pinned already may write to it before the device has read it.
        memory.copy_((tensor.clone() if tensor.is_pinned() else tensor).pin_memory(), non_blocking=True)
        self._slots[self._turn].append(memory)
        return memory.view_as(memory)


def _recorded(device: torch.device, stream: torch.Stream) -> torch.Event:
    event = torch.Event(device=device)
    event.record(stream)
    return event


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype


def _is_free(memory: Tensor) -> bool:
    """Whether nobody but us holds the memory: a script that kept a shard keeps its values."""
    return torch._C._storage_Use_Count(memory.untyped_storage()._cdata) <= 2  # ours, and that of this very look
