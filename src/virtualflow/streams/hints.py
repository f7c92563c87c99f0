"""Where a virtual node could go on reading: hints, which save time and decide nothing.

Each has a digest of the example that comes next. A hint that leads elsewhere (a state that leaves out what was in a
buffer, a file that has changed) is found by it, and not followed.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

KEPT = 4  # of the newest hints, and of each power of two further back


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a virtual node reads its *n*-th example: in which pass over its shards, at which of them, and where in it.

    *turn* counts the node's shards in the order that they have in this pass.
    """

    n: int
    number: int  # of the pass
    turn: int
    at: int


@dataclass(frozen=True, slots=True)
class Hint:
    """A place, the state of the shard's iterable there (None if it has none), and a digest of what comes next."""

    spot: Spot
    shard: int
    state: Any
    next_digest: str
    serial: int = 0


class Hints:
    """The hints for one virtual node: all recent ones, and the fewer the further back; in a file, where there is one.

    Whoever reads for the node next may be another process, so the file is read again whenever one looks for a hint.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._hints: dict[Spot, Hint] = {}
        self._rows: dict[Spot, str] = {}  # those that can be written

    def add(self, spot: Spot, shard: int, state: Any, next_digest: str) -> None:
        """A node has read from *spot* on."""
        if spot in self._hints:
            return
        newest = 1 + max((hint.serial for hint in self._hints.values()), default=0)
        self._hints[spot] = Hint(spot, shard, state, next_digest, newest)
        # Of those further back only every second, fourth, ... is kept: who goes back far reads a part of the way again.
        self._hints = {other_spot: hint for other_spot, hint in self._hints.items() if _is_kept(hint.serial, newest)}
        if self._path is not None:
            self._rows = {
                other_spot: self._rows.get(other_spot) or _row(hint) for other_spot, hint in self._hints.items()
            }
            with contextlib.suppress(OSError):  # a hint that is lost costs time, no more
                partial = self._path.with_suffix(f".{os.getpid()}")
                partial.write_text(f"[{','.join(filter(None, self._rows.values()))}]")
                partial.replace(self._path)

    def known(self) -> list[Hint]:
        """All hints, those of other processes too."""
        if self._path is not None:
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                for row in json.loads(self._path.read_text()):
                    hint = Hint(**{**row, "spot": Spot(**row["spot"])})
                    self._hints.setdefault(hint.spot, hint)
        return list(self._hints.values())

    def drop(self, hint: Hint) -> None:
        """It leads nowhere."""
        self._hints.pop(hint.spot, None)


def _is_kept(serial: int, newest: int) -> bool:
    return newest - serial < KEPT * (serial & -serial)


def _row(hint: Hint) -> str:
    """As it is written; empty if its state would be another one after it was read."""
    try:
        is_same = json.loads(json.dumps(hint.state)) == hint.state
        return json.dumps(asdict(hint)) if is_same else ""
    except (TypeError, ValueError):
        return ""
