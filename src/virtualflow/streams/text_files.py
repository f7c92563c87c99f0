"""Text files as streams: any files in any number of shards, cut at the ends of lines."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from virtualflow.errors import ConfigError
from virtualflow.streams.stream import Stream

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def text_lines(paths: Paths, *, shards: int, block: int = 0, count: bool = True) -> Stream:
    """The lines of text files, without their ends, as a stream. Empty lines are left out.

    The files are cut into *shards* parts of about as many bytes, at the ends of lines; those that end in ``.gz`` can't
    be cut, and go to the shards as they are. All is read once to count the lines, for epochs; ``count=False`` saves
    that where ``trainer.steps`` needs none.
    """
    files = listed(paths)
    pieces = _whole(files, shards) if any(file.suffix == ".gz" for file in files) else _cut(files, shards)
    stream = Stream(LineShards(pieces), shards=shards, block=block)
    return stream.counted() if count else stream


def jsonl(paths: Paths, *, shards: int, block: int = 0, count: bool = True) -> Stream:
    """The values of JSON Lines files as a stream: one for each line, parsed when it is used. See ``text_lines``."""
    return text_lines(paths, shards=shards, block=block, count=count).map(json.loads)


def listed(paths: Paths) -> list[Path]:
    """*paths* as a list of files that are there: one path, several, or a pattern with ``*``, in order of names."""
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    files: list[Path] = []
    for path in map(Path, given):
        files += sorted(path.parent.glob(path.name)) if "*" in path.name else [path]
    if not files:
        raise ConfigError(
            f"no file is called {', '.join(map(str, given)) or 'nothing'}. Check the path or the pattern."
        )
    if missing := [file for file in files if not file.is_file()]:
        raise ConfigError(f"{missing[0]} is not there, or no file. Check the path.")
    return files


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The lines of a file that begin at *start* or later, and before *end*; all of it where *end* is None."""

    path: Path
    start: int = 0
    end: int | None = None


@dataclass(frozen=True, slots=True)
class LineShards:
    """Opens each shard: the lines of its pieces."""

    draws: ClassVar[bool] = False
    pieces: tuple[tuple[ByteRange, ...], ...]

    def __call__(self, shard: int) -> ShardLines:
        return ShardLines(self.pieces[shard])


class ShardLines:
    """The lines of some pieces, one after another. It knows its position, and can go on from there."""

    def __init__(self, pieces: Sequence[ByteRange]) -> None:
        self._pieces = pieces
        self._piece = 0
        self._offset: int | None = None  # None before the piece's first line

    def state_dict(self) -> dict[str, Any]:
        """Where the next line is."""
        return {"piece": self._piece, "offset": self._offset}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._piece, self._offset = state["piece"], state["offset"]

    def __iter__(self) -> Iterator[str]:
        while self._piece < len(self._pieces):
            piece = self._pieces[self._piece]
            with gzip.open(piece.path, "rb") if piece.path.suffix == ".gz" else piece.path.open("rb") as file:
                if self._offset is None:
                    self._offset = _first_line(file, piece.start)
                file.seek(self._offset)
                for line in file:
                    if piece.end is not None and self._offset >= piece.end:
                        break
                    self._offset += len(line)
                    if text := line.rstrip(b"\r\n"):
                        yield text.decode()
            self._piece, self._offset = self._piece + 1, None


def _first_line(file: Any, start: int) -> int:
    """Where the first line begins that begins at *start* or later."""
    if start == 0:
        return 0
    file.seek(start - 1)
    return start - 1 + len(file.readline())


def _whole(files: Sequence[Path], shards: int) -> tuple[tuple[ByteRange, ...], ...]:
    if len(files) < shards:
        raise ConfigError(
            f"{len(files)} files, some of them compressed, can't be cut into {shards} shards: a compressed file is "
            "read from its start. Use as many files, or decompress them."
        )
    return tuple(tuple(ByteRange(file) for file in files[shard::shards]) for shard in range(shards))


def _cut(files: Sequence[Path], shards: int) -> tuple[tuple[ByteRange, ...], ...]:
    """Parts of the files, laid end to end, of as many bytes each as possible."""
    sizes = [file.stat().st_size for file in files]
    total = sum(sizes)
    pieces: list[tuple[ByteRange, ...]] = []
    for shard in range(shards):
        first, end, before = shard * total // shards, (shard + 1) * total // shards, 0
        mine = []
        for file, size in zip(files, sizes, strict=True):
            start, stop = max(first - before, 0), min(end - before, size)
            if start < stop:
                mine.append(ByteRange(file, start, stop))
            before += size
        pieces.append(tuple(mine))
    return tuple(pieces)
