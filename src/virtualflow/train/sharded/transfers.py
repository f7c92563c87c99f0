"""Many pieces of memory from worker to worker, in few exchanges of bounded size, the same ones on every worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from virtualflow.core.membership import Group

MOST_BYTES = 8 * 2**20  # that a worker sends or receives in one exchange, unless one piece is larger


@dataclass(frozen=True, slots=True)
class Transfer:
    """So many bytes of *what*, from one rank to another."""

    source: int
    target: int
    length: int
    what: Any


def carry(
    transfers: Sequence[Transfer],
    group: Group,
    device: torch.device,
    read: Callable[[Any], Tensor],
    write: Callable[[Any, Tensor], None],
) -> None:
    """Make all *transfers*, which every worker lists in the same order.

    ``read(what)`` gives bytes where they are; ``write(what, bytes)`` takes them, and must not keep that memory.
    """
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
            write(transfer.what, incoming[place : place + transfer.length])
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
