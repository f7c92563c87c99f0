"""Streams for tests: numbers whose every reading is written down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from virtualflow.core.seeds import derive
from virtualflow.streams.cursor import ReadContext

CALM = ReadContext(7, lambda seed: None, repr)


class Numbers:
    """Shard *s* has ``lengths[s]`` numbers, ``1000 * s`` and up. Counts how often each was read."""

    def __init__(self, *lengths: int, stateful: bool = False) -> None:
        self.lengths = lengths
        self.stateful = stateful
        self.reads: Counter[int] = Counter()

    def __call__(self, shard: int) -> Iterator[int]:
        return (Stateful if self.stateful else Plain)(self, shard)

    def all(self) -> Counter[int]:
        return Counter(1000 * shard + at for shard, length in enumerate(self.lengths) for at in range(length))


class Plain:
    def __init__(self, numbers: Numbers, shard: int) -> None:
        self._numbers, self._shard, self._at = numbers, shard, 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self._at == self._numbers.lengths[self._shard]:
            raise StopIteration
        self._at += 1
        number = 1000 * self._shard + self._at - 1
        self._numbers.reads[number] += 1
        return number


class Stateful(Plain):
    def state_dict(self) -> dict[str, Any]:
        return {"at": self._at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._at = state["at"]


def shuffled(items: list[Any], seed: int) -> list[Any]:
    return sorted(items, key=lambda item: derive(seed, repr(item)))
