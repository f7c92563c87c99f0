"""Jobs that wait, in a policy's order. Looking at the first k costs k log k, whatever waits behind them."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

from virtualflow.cluster.job import ScheduledJob

QueueKey = tuple[Any, ...]


class Queue:
    """A heap that can be walked in order without being emptied, and from which any job can be taken."""

    def __init__(self) -> None:
        self._heap: list[tuple[QueueKey, int, ScheduledJob]] = []
        self._numbers: dict[str, int] = {}  # of the jobs that really wait; other heap entries are left-overs
        self._next = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._numbers

    def add(self, key: QueueKey, state: ScheduledJob) -> None:
        self._next += 1
        self._numbers[state.id] = self._next
        heapq.heappush(self._heap, (key, self._next, state))

    def remove(self, job_id: str) -> None:
        del self._numbers[job_id]
        while self._heap and self._is_stale(self._heap[0]):
            heapq.heappop(self._heap)
        if len(self._heap) > 2 * len(self._numbers) + 16:
            self._heap = [entry for entry in self._heap if not self._is_stale(entry)]
            heapq.heapify(self._heap)

    def __iter__(self) -> Iterator[ScheduledJob]:
        """In order, as far as the caller cares to look. The queue must not change meanwhile."""
        heap, size = self._heap, len(self._heap)
        frontier = [(heap[0], 0)] if heap else []
        while frontier:
            entry, place = heapq.heappop(frontier)
            for child in (2 * place + 1, 2 * place + 2):
                if child < size:
                    heapq.heappush(frontier, (heap[child], child))
            if not self._is_stale(entry):
                yield entry[2]

    def _is_stale(self, entry: tuple[QueueKey, int, ScheduledJob]) -> bool:
        return self._numbers.get(entry[2].id) != entry[1]
