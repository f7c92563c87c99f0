"""What a job tells the world: typed events, one JSON line each, in the job's folder.

Logs, ``vf verify`` and everything that draws or watches a job read this stream and nothing else.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from virtualflow.errors import EventStreamError

STREAM = "events.jsonl"


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The facts of a run: what decides its bits, and how it was laid out."""

    facts: dict[str, Any]
    devices: list[str]
    mapping: list[str]
    waves: int


@dataclass(frozen=True, slots=True)
class EpochStarted:
    epoch: int
    epochs: int
    steps: int
    first_step: int


@dataclass(frozen=True, slots=True)
class StepDone:
    """One committed step. ``loss_bits``, ``norm_bits``, ``ids`` and ``chain`` are its certificate."""

    step: int
    epoch: int
    loss: float
    loss_bits: str
    norm_bits: str | None
    ids: str
    chain: str
    examples: int
    seconds: float
    attempts: int
    accumulator: str | None = None


@dataclass(frozen=True, slots=True)
class EpochEnded:
    epoch: int
    step: int
    digest: str


@dataclass(frozen=True, slots=True)
class Evaluated:
    step: int
    value: float


@dataclass(frozen=True, slots=True)
class Saved:
    step: int
    path: str


@dataclass(frozen=True, slots=True)
class Loaded:
    step: int
    path: str
    chain: str


Event = RunStarted | EpochStarted | StepDone | EpochEnded | Evaluated | Saved | Loaded
_KINDS: dict[str, type[Any]] = {
    "run started": RunStarted,
    "epoch started": EpochStarted,
    "step": StepDone,
    "epoch ended": EpochEnded,
    "evaluated": Evaluated,
    "saved": Saved,
    "loaded": Loaded,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


@dataclass(slots=True)
class EventLog:
    """Appends events to a stream; without a path it drops them (workers other than the lead)."""

    path: Path | None
    _file: TextIO | None = field(default=None, repr=False)

    def write(self, event: Event) -> None:
        if self.path is None:
            return
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a", buffering=1)
        line = {"event": _NAMES[type(event)], "time": round(time.time(), 3), **asdict(event)}
        self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def parse(line: str) -> Event:
    """The event that *line* holds."""
    fields = json.loads(line)
    kind = _KINDS[fields.pop("event")]
    fields.pop("time", None)
    event: Event = kind(**fields)
    return event


def read_events(path: Path) -> Iterator[Event]:
    """The events of a stream, in order. A last line cut off by a kill is left out."""
    try:
        text = path.read_text()
    except OSError as error:
        raise EventStreamError(f"cannot read the event stream {path}: {error.strerror}") from error
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield parse(line)
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                return
            raise EventStreamError(f"{path}, line {number}, is not an event of this version: {error!r}") from error
