"""Rows of equally many tokens from documents of any length, for language models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualflow.errors import ConfigError
from virtualflow.streams.resumable import Resumable
from virtualflow.streams.stream import Stream

Tokens = npt.NDArray[np.int64]


def pack(stream: Stream, length: int, *, separator: int | None = None) -> Stream:
    """A stream of rows of *length* tokens, cut from the documents of each shard laid end to end.

    A document is a sequence of tokens, or a dict with ``input_ids``; *separator* comes after each. What is left at the
    end of a shard is less than a row, and left out. Blocks of rows are shuffled, as those of *stream* are. How many
    rows there are is not known: ``.counted()`` finds out, and gives epochs.
    """
    if length < 1:
        raise ConfigError(f"vf.pack got length={length}, expected the number of tokens in a row")
    return Stream(PackedShards(replace(stream, block=0), length, separator), shards=stream.shards, block=stream.block)


@dataclass(frozen=True, slots=True)
class PackedShards:
    """Opens each shard: rows from its documents."""

    stream: Stream
    length: int
    separator: int | None

    def __call__(self, shard: int) -> PackedRows:
        return PackedRows(self, shard)


class PackedRows:
    """The rows of one shard. It knows its position if its documents know theirs, by the tokens that are left over."""

    def __init__(self, shards: PackedShards, shard: int) -> None:
        self._shards = shards
        self._shard = shard
        self._read = 0  # documents
        self._left: Tokens = np.empty(0, dtype=np.int64)
        self._documents = Resumable(shards.stream.open_shard(shard))

    def state_dict(self) -> dict[str, Any] | None:
        """Where the next document is, and what is left of those before; None if the documents can't be resumed."""
        state = self._documents.state()
        return None if state is None else {"documents": state, "read": self._read, "left": self._left.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._read, self._left = state["read"], np.asarray(state["left"], dtype=np.int64)
        self._documents = Resumable(self._shards.stream.open_shard(self._shard), state["documents"])

    def __iter__(self) -> Iterator[Tokens]:
        length = self._shards.length
        while True:
            parts = [self._left]
            while sum(map(len, parts)) < length and (document := self._next()) is not None:
                parts.append(document)
            tokens = np.concatenate(parts)
            if len(tokens) < length:
                return
            self._left = tokens[length:]
            yield tokens[:length]

    def _next(self) -> Tokens | None:
        """The next document with what comes after it; None at the end."""
        stream, separator = self._shards.stream, self._shards.separator
        if stream.counts is not None and self._read == stream.counts[self._shard]:
            return None
        for document in self._documents:
            self._read += 1
            tokens = _tokens(document if stream.function is None else stream.function(document))
            return tokens if separator is None else np.append(tokens, separator)
        return None


def _tokens(document: Any) -> Tokens:
    try:
        tokens = np.asarray(document["input_ids"] if isinstance(document, Mapping) else document)
    except (KeyError, ValueError):
        tokens = np.empty((0, 0))
    if tokens.ndim != 1 or (len(tokens) and tokens.dtype.kind not in "iu"):
        raise ConfigError(
            f"vf.pack got a document of type {type(document).__name__}, expected a sequence of whole numbers, or a "
            "dict with input_ids. stream.map(tokenize) makes them."
        )
    return tokens.astype(np.int64)
