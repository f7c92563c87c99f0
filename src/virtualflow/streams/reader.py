"""A stream as a Trainer trains on it: by an index that says for which virtual node, and the how manieth example."""

from __future__ import annotations

import copy
import os
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from virtualflow.errors import ConfigError
from virtualflow.streams.cursor import Cursor, ReadContext
from virtualflow.streams.hints import Hints
from virtualflow.streams.stream import Stream

KEPT_STEPS = 8  # of a virtual node's examples: a replay asks again, and loader processes are a few steps ahead
_VALUES = frozenset({int, float, complex, bool, str, bytes, type(None)})


class StreamReader:
    """``reader[index]`` is a pure function: any worker, and any process of it, can read any example.

    What a worker has open, and what it has noted of where things are, is a matter of time alone.
    """

    def __init__(
        self, stream: Stream, nodes: int, node_size: int, context: ReadContext, folder: Path | None = None
    ) -> None:
        if stream.shards % nodes:
            more = -(-stream.shards // nodes) * nodes
            raise ConfigError(
                f"the stream has shards={stream.shards}, and the job {nodes} virtual nodes: each shard belongs to one "
                f"virtual node, and all have equally many. Use shards={more}, or another multiple of {nodes}."
            )
        self.stream = stream
        self.nodes = nodes
        self._context = context
        self._keep = KEPT_STEPS * node_size
        self._hints = [Hints(folder / f"node-{node}.json" if folder is not None else None) for node in range(nodes)]
        self._cursors: dict[int, Cursor] = {}
        self._process = os.getpid()
        self._others: list[dict[int, Cursor]] = []

    def check_repeats(self) -> None:
        """Refuse a stream that begins with another example when it is opened again. Changes the generators."""
        digests = []
        for _ in range(2):
            self._context.reseed_for("check")
            digests.append([self._context.digest_of(example) for example in islice(self.stream.open_shard(0), 1)])
        if digests[0] != digests[1]:
            raise ConfigError(
                "open_shard(0) gives another first example when it is called again, so a worker that takes over would "
                "train on others. Let a shard depend on its number alone: a generator of its own must be made inside, "
                "from that number (random.Random(shard)); those of torch, numpy and random are seeded before each "
                "example. Return a new iterable at every call."
            )

    def __getitem__(self, index: int) -> Any:
        if self._process != os.getpid():
            # A fork shares the positions of open files: those of the parent are neither read nor closed here.
            self._others.append(self._cursors)
            self._cursors, self._process = {}, os.getpid()
        n, node = divmod(index, self.nodes)
        if node not in self._cursors:
            self._cursors[node] = Cursor(self.stream, node, self.nodes, self._context, self._hints[node])
        example = own_copy(self._cursors[node].example(n, self._keep))
        if self.stream.function is None:
            return example
        if self.stream.function_draws:
            self._context.reseed_for("map", index)
        return self.stream.function(example)


def own_copy(value: Any) -> Any:
    """A copy of an example: what is changed in it must not reach who asks for it again."""
    value_type = type(value)
    if value_type in _VALUES:
        return value
    if value_type is dict:
        return {key: own_copy(item) for key, item in value.items()}
    if value_type in (list, tuple):
        return value_type(map(own_copy, value))
    if value_type is np.ndarray or hasattr(value, "untyped_storage"):  # of a view, only what is seen
        return value.copy() if value_type is np.ndarray else value.detach().clone()
    try:
        return copy.deepcopy(value)
    except TypeError as error:
        raise ConfigError(
            f"a stream gives a {value_type.__name__}, which can't be copied ({error}). Examples are handed out again "
            "when a step is replayed: give plain values, arrays or tensors, and open files in stream.map(function)."
        ) from error
