"""Tar files of examples as streams: files whose names differ only in their endings are one example."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from virtualflow.errors import ConfigError
from virtualflow.streams.stream import Stream
from virtualflow.streams.text_files import Paths, listed


def tar_shards(paths: Paths, *, shards: int | None = None, block: int = 0, count: bool = True) -> Stream:
    """The examples of tar files, as WebDataset writes them, as a stream of dicts: ending -> bytes, and ``__key__``.

    A file is not cut: *shards* is at most their number, which it is by default. All is read once to count the examples,
    for epochs; ``count=False`` saves that where ``trainer.steps`` needs none. ``stream.map(decode)`` decodes.
    """
    files = listed(paths)
    shards = len(files) if shards is None else shards
    if not 1 <= shards <= len(files):
        raise ConfigError(
            f"{len(files)} tar files can't be {shards} shards: a tar file is not cut. Use one shard per file at most, "
            "or write more and smaller files."
        )
    opener = TarShards(tuple(tuple(files[shard::shards]) for shard in range(shards)))
    stream = Stream(opener, shards=shards, block=block)
    return stream.counted() if count else stream


@dataclass(frozen=True, slots=True)
class TarShards:
    """Opens each shard: the examples of its tar files."""

    draws: ClassVar[bool] = False
    files: tuple[tuple[Path, ...], ...]

    def __call__(self, shard: int) -> TarReader:
        return TarReader(self.files[shard])


class TarReader:
    """The examples of some tar files, one after another. It knows its position, and can go on from there."""

    def __init__(self, files: tuple[Path, ...]) -> None:
        self._files = files
        self._file = 0
        self._offset: int | None = 0

    def state_dict(self) -> dict[str, Any] | None:
        """Where the next example is; None in a compressed file, which is read from its start."""
        return {"file": self._file, "offset": self._offset} if self._offset is not None else None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._file, self._offset = state["file"], state["offset"]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while self._file < len(self._files):
            yield from self._examples(self._files[self._file])

    def _examples(self, path: Path) -> Iterator[dict[str, Any]]:
        is_plain = path.suffix == ".tar"
        example: dict[str, Any] = {}
        with path.open("rb") as file:
            file.seek(self._offset or 0)
            with tarfile.open(fileobj=file, mode="r:" if is_plain else "r|*") as archive:
                for member in archive:
                    archive.members = []  # type: ignore[attr-defined]  # it would grow with the file
                    if not member.isfile():
                        continue
                    key, _, ending = _split(member.name)
                    if example and example["__key__"] != key:
                        self._offset = member.offset if is_plain else None
                        yield example
                        example = {}
                    example |= {"__key__": key, ending: archive.extractfile(member).read()}  # type: ignore[union-attr]
        self._file, self._offset = self._file + 1, 0
        if example:
            yield example


def _split(name: str) -> tuple[str, str, str]:
    """The name of a file up to the first dot, that dot, and its ending."""
    folder, slash, base = name.rpartition("/")
    key, dot, ending = base.partition(".")
    return f"{folder}{slash}{key}", dot, ending
