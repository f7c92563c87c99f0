"""Many pieces of memory from worker to worker, with as little memory beside them as the way allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from virtualflow.core.membership import Group

MOST_BYTES = 8 * 2**20  # that a worker sends or receives in one exchange, unless one piece is larger
MOST_AT_ONCE = 64  # messages
TAG = 1 << 16  # of these messages: nothing else is under way in a group meanwhile


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bytes of *what*, from one rank to another."""

    source: int
    target: int
    length: int
    what: Any


Memory = Callable[[Any], Tensor]  # the bytes of what is transferred, where they are


def carry(transfers: Sequence[Transfer], group: Group, device: torch.device, read: Memory, into: Memory) -> None:
    """Make all *transfers*, which every worker lists in the same order: from ``read(what)`` to ``into(what)``."""
    if group.reaches_devices:
        _by_exchanges(transfers, group, device, read, into)
        return
    for start in range(0, len(transfers), MOST_AT_ONCE):
        at_once = transfers[start : start + MOST_AT_ONCE]
        works = [group.receive(into(t.what), t.source, TAG) for t in at_once if t.target == group.rank]
        works += [group.send(read(t.what), t.target, TAG) for t in at_once if t.source == group.rank]
        for work in works:
            work.wait()


def _by_exchanges(
    transfers: Sequence[Transfer], group: Group, device: torch.device, read: Memory, into: Memory
) -> None:
    """From accelerator to accelerator, whose libraries know no tags."""
    for batch in _batches(transfers):
        sent = sorted((t for t in batch if t.source == group.rank), key=lambda t: t.target)
        received = sorted((t for t in batch if t.target == group.rank), key=lambda t: t.source)
        outgoing = torch.empty(sum(t.length for t in sent), dtype=torch.uint8, device=device)
        place = 0
        for transfer in sent:
            outgoing[place : place + transfer.length] = read(transfer.what)
            place += transfer.length
        incoming = torch.empty(sum(t.length for t in received), dtype=torch.uint8, device=device)
        to = [sum(t.length for t in sent if t.target == rank) for rank in range(group.size)]
        of = [sum(t.length for t in received if t.source == rank) for rank in range(group.size)]
        group.exchange(outgoing, to, incoming, of).wait()
        group.settle()
        place = 0
        for transfer in received:
            into(transfer.what).copy_(incoming[place : place + transfer.length])
            place += transfer.length


def _batches(transfers: Sequence[Transfer]) -> Iterator[list[Transfer]]:
    batch: list[Transfer] = []
    loads: dict[tuple[str, int], int] = {}
    for transfer in transfers:
        ends = ("source", transfer.source), ("target", transfer.target)
        if batch and any(loads.get(end, 0) + transfer.length > MOST_BYTES for end in ends):
            yield batch
            batch, loads = [], {}
        batch.append(transfer)
        for end in ends:
            loads[end] = loads.get(end, 0) + transfer.length
    if batch:
        yield batch
