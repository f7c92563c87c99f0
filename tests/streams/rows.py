"""A stream of rows in files, for jobs: which rows are read, and what they are used for, is written down in files."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import virtualflow as vf
from virtualflow.train.data import fetching

SHARDS, EACH, BLOCK = 8, 15, 4


class Rows:
    """Shard *s* is the lines of a file, from which it can go on; every reading is appended to another file."""

    def __init__(self, folder: Path, shard: int) -> None:
        self._reads = folder / "reads"
        self._path = folder / f"rows-{shard}"
        self._line = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        lines = self._path.read_text().splitlines()
        while self._line < len(lines):
            self._line += 1
            with self._reads.open("a") as file:
                file.write(f"{lines[self._line - 1]}\n")
            yield torch.full((6,), float(lines[self._line - 1]) / 1000)

    def state_dict(self) -> dict[str, int]:
        return {"line": self._line}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._line = state["line"]


def rows(folder: Path, **options: Any) -> vf.Stream:
    for shard in range(SHARDS):
        path = folder / f"rows-{shard}"
        if not path.exists():
            path.write_text("".join(f"{1000 * shard + at}\n" for at in range(EACH)))
    return vf.Stream(lambda shard: Rows(folder, shard), shards=SHARDS, **{"examples": EACH, "block": BLOCK} | options)


def reads(folder: Path) -> Counter[int]:
    return Counter(int(line) for line in (folder / "reads").read_text().split())


def looked_at(workers: int = 1) -> Counter[int]:
    """What each worker reads of the first shard before it begins, to see whether it gives the same again."""
    return Counter({0: 2 * workers})


def once() -> Counter[int]:
    return Counter(1000 * shard + at for shard in range(SHARDS) for at in range(EACH))


class Noting:
    """Writes down for which step, virtual node and attempt an example is used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, row: torch.Tensor) -> torch.Tensor:
        request = fetching()
        assert request is not None
        number = round(1000 * float(row[0]))
        with (self._folder / f"used-{os.getpid()}").open("a") as file:
            file.write(" ".join(map(str, (*request.key, number))) + "\n")
        return row


def used(folder: Path) -> dict[tuple[int, int, int, int], set[int]]:
    """The numbers that were used, by epoch, step, virtual node and attempt; of a step made again, once."""
    result: dict[tuple[int, int, int, int], set[int]] = defaultdict(set)
    for path in folder.glob("used-*"):
        for line in path.read_text().splitlines():
            epoch, step, node, attempt, number = map(int, line.split())
            result[epoch, step, node, attempt].add(number)
    return result
