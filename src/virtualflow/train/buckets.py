"""All-reduces that start while the last wave's backward still runs, in the same order on every worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from virtualflow.core.membership import Work

BUCKET_BYTES = 8 * 2**20


def cut(sizes: Sequence[int], bucket_bytes: int = BUCKET_BYTES) -> list[range]:
    """Consecutive items of *sizes* bytes grouped into buckets of about *bucket_bytes*."""
    buckets, start, filled = [], 0, 0
    for item, size in enumerate(sizes):
        filled += size
        if filled >= bucket_bytes or item == len(sizes) - 1:
            buckets.append(range(start, item + 1))
            start, filled = item + 1, 0
    return buckets


class Buckets:
    """Launches each bucket once all of its items are ready and all buckets before it are under way."""

    def __init__(self, buckets: Sequence[range], launch: Callable[[range], Work]) -> None:
        self._buckets = list(buckets)
        self._bucket_of = [number for number, bucket in enumerate(self._buckets) for _ in bucket]
        self._launch = launch
        self.restart()

    def restart(self) -> None:
        self._missing = [len(bucket) for bucket in self._buckets]
        self._works: list[Work] = []

    def ready(self, item: int) -> None:
        """Say that nothing more will be added to *item* on this worker."""
        self._missing[self._bucket_of[item]] -= 1
        while len(self._works) < len(self._buckets) and self._missing[len(self._works)] == 0:
            self._works.append(self._launch(self._buckets[len(self._works)]))

    def flush(self) -> None:
        """Launch what is left (items that nothing was added to) and wait until all have arrived."""
        for bucket in self._buckets[len(self._works) :]:
            self._works.append(self._launch(bucket))
        for work in self._works:
            work.wait()
