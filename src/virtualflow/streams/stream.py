"""What a stream consists of: a fixed number of logical shards, each an iterable that can be opened again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from virtualflow.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Stream:
    """Data that are read from front to back, in *shards* parts: ``open_shard(s)`` returns an iterable over part *s*.

    A shard belongs to one virtual node, so their number is a multiple of the virtual nodes'. *block* shuffles: the
    order of the shards, and the examples within blocks of that size. *examples* says how many each shard gives, in one
    number or one for each; what comes after is not read. A stream that has them has epochs; others are for
    ``trainer.steps``.

    An iterable or its iterator may have ``state_dict`` and ``load_state_dict``. They save time where a shard is opened
    in the middle; without them, what comes before is read and dropped.
    """

    open_shard: Callable[[int], Iterable[Any]]
    _: KW_ONLY
    shards: int
    examples: int | Sequence[int] | None = None
    block: int = 0
    function: Callable[[Any], Any] | None = None  # of each example, when it is used: see map

    def __post_init__(self) -> None:
        if not callable(self.open_shard):
            raise ConfigError(
                f"vf.Stream got a {type(self.open_shard).__name__}, expected a function: open_shard(s) returns an "
                "iterable over the examples of shard s, a new one at every call."
            )
        if self.shards < 1:
            raise ConfigError(f"a stream needs at least one shard, but shards={self.shards}")
        if self.block < 0:
            raise ConfigError(f"block={self.block}: it says how many examples are shuffled at a time, 0 for none")
        if self.counts is not None and (len(self.counts) != self.shards or min(self.counts) < 0):
            raise ConfigError(
                f"examples= has {len(self.counts)} numbers, the least of them {min(self.counts, default=0)}, but "
                f"shards={self.shards}. Give one number for all shards, or one for each."
            )

    @property
    def counts(self) -> tuple[int, ...] | None:
        """How many examples each shard gives; None if that is not known."""
        if isinstance(self.examples, int):
            return (self.examples,) * self.shards
        return None if self.examples is None else tuple(self.examples)

    @property
    def draws(self) -> bool:
        """Whether reading an example may draw from a generator: files of lines and tar files do not."""
        return bool(getattr(self.open_shard, "draws", True))

    @property
    def function_draws(self) -> bool:
        """The same of the function that is applied to an example."""
        return self.function is not None and self.function is not json.loads

    def map(self, function: Callable[[Any], Any]) -> Stream:
        """The same stream with *function* applied to each example when it is used, not when it is read.

        So a block holds what was read, before it is decoded; and what *function* draws is seeded for the example.
        """
        return replace(self, function=function if self.function is None else _Composed(self.function, function))

    def counted(self) -> Stream:
        """The same stream with its examples counted: all of it is read once."""
        return replace(self, examples=[sum(1 for _ in self._raw(shard)) for shard in range(self.shards)])

    def shard(self, number: int) -> Iterator[Any]:
        """The examples of one shard, in their own order."""
        return self._raw(number) if self.function is None else map(self.function, self._raw(number))

    def __iter__(self) -> Iterator[Any]:
        """All examples once, shard after shard: ``list(stream)`` is a dataset to evaluate on."""
        for number in range(self.shards):
            yield from self.shard(number)

    def _raw(self, number: int) -> Iterator[Any]:
        most = None if self.counts is None else self.counts[number]
        if most == 0:
            return
        for count, example in enumerate(self.open_shard(number), 1):
            yield example
            if count == most:
                return


@dataclass(frozen=True, slots=True)
class _Composed:
    """Two functions, one after the other."""

    first: Callable[[Any], Any]
    second: Callable[[Any], Any]

    def __call__(self, example: Any) -> Any:
        return self.second(self.first(example))
