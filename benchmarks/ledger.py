"""Every allocation that torch makes, to the byte, and what it was for.

Taken from torch's own allocator through its profiler, so the peak is that of live tensors: exact, the same in every
run, and free of what the C library keeps back or fragments. Not in it: scratch memory inside MKL, oneDNN and gloo.
Memory that another thread frees counts until its address is used again.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from torch import Tensor
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile

CATEGORIES = ("parameters", "optimizer", "accumulator", "gradients", "inputs", "activations")


@dataclass(frozen=True, slots=True)
class Change:
    """Memory taken (or given back, if negative) at one moment."""

    time_ns: int
    bytes: int
    category: str


class Ledger:
    """Records allocations while it is entered; ``tag`` says what a tensor is, the rest counts as activations."""

    def __init__(self) -> None:
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._tags: dict[int, list[tuple[int, str]]] = {}  # by address: the same one is used again and again
        self.changes: list[Change] = []

    def __enter__(self) -> Self:
        self._profile.__enter__()
        return self

    def tag(self, category: str, tensors: Iterable[Tensor | None]) -> None:
        """Say that *tensors*, alive right now, are of *category*."""
        for tensor in tensors:
            if tensor is not None:
                address = tensor.untyped_storage().data_ptr()
                self._tags.setdefault(address, []).append((time.time_ns(), category))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._profile.__exit__(kind, error, trace)
        self.changes = self._changes()

    def peak(self) -> int:
        """The largest number of bytes that were alive at once."""
        held = highest = 0
        for change in self.changes:
            held += change.bytes
            highest = max(highest, held)
        return highest

    def _changes(self) -> list[Change]:
        changes: list[Change] = []
        alive: dict[int, tuple[int, int]] = {}  # address -> when, bytes
        last = 0
        for when, address, size in self._allocations():
            last = when
            if address in alive:  # only frees of this thread are seen: others have been made when the address is used
                changes.extend(self._life(address, *alive.pop(address), until=when, freed=True))
            if size > 0:
                alive[address] = (when, size)
        for address, (when, size) in alive.items():
            changes.extend(self._life(address, when, size, until=last + 1, freed=False))
        return sorted(changes, key=lambda change: change.time_ns)

    def _life(self, address: int, since: int, size: int, *, until: int, freed: bool) -> list[Change]:
        tags = self._tags.get(address, [])
        # The last word counts: memory is tagged when it has become what it will be.
        place = bisect.bisect_right(tags, (until, "~")) - 1
        category = tags[place][1] if place >= 0 and tags[place][0] >= since else "activations"
        end = [Change(until, -size, category)] if freed else []
        return [Change(since, size, category), *end]

    def _allocations(self) -> list[tuple[int, int, int]]:
        roots = self._profile.profiler.kineto_results.experimental_event_tree()  # type: ignore[union-attr]
        found = [
            (event.start_time_ns, event.typed[1].ptr, event.typed[1].alloc_size)
            for event in _walk(roots)
            if event.tag == _EventType.Allocation
        ]
        return sorted(found)


def _walk(events: Iterable[Any]) -> Iterator[Any]:
    stack = list(events)
    while stack:
        event = stack.pop()
        yield event
        stack.extend(event.children)
