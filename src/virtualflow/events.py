"""What a job tells the world: typed events, one JSON line each, in the job's folder.

Logs, ``vf verify`` and everything that draws or watches a job read this stream and nothing else.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from virtualflow.errors import EventStreamError

STREAM = "events.jsonl"
KEPT_STEPS = 256


def stream_of(folder: Path, trainer: int) -> Path:
    """Where a job's Trainer of that number writes: 1 for the first."""
    return folder / (STREAM if trainer == 1 else f"events-{trainer}.jsonl")


def streams_in(folder: Path) -> list[Path]:
    """The streams of all Trainers of a job, in their order."""
    found = itertools.takewhile(Path.is_file, (stream_of(folder, number) for number in itertools.count(1)))
    return list(found)


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


@dataclass(frozen=True, slots=True)
class Regrouped:
    """A new generation. ``pause_ms`` is how long the lead stood still for it, and on what."""

    generation: int
    step: int
    cause: str  # "resize" or "loss"
    devices: list[str]
    joined: list[str]
    left: list[str]
    mapping: list[str]
    pause_ms: dict[str, float]


@dataclass(frozen=True, slots=True)
class SetRight:
    """Workers on other device types had rounded differently, and were given the lead's model."""

    step: int
    ranks: list[str]


Event = RunStarted | EpochStarted | StepDone | EpochEnded | Evaluated | Saved | Loaded | Regrouped | SetRight
_KINDS: dict[str, type[Any]] = {
    "run started": RunStarted,
    "epoch started": EpochStarted,
    "step": StepDone,
    "epoch ended": EpochEnded,
    "evaluated": Evaluated,
    "saved": Saved,
    "loaded": Loaded,
    "regrouped": Regrouped,
    "set right": SetRight,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


class EventLog:
    """Appends to a job's stream on the lead worker; one that becomes the lead goes on where the last one stopped."""

    def __init__(self, path: Path, is_lead: Callable[[], bool]) -> None:
        self.path = path
        self._is_lead = is_lead
        self._descriptor: int | None = None
        self._waiting = b""  # what a full disk has not taken yet
        self._unwritten: deque[StepDone] = deque(maxlen=KEPT_STEPS)  # the last ones of a worker that is not the lead

    def write(self, event: Event) -> None:
        if not self._is_lead():
            if isinstance(event, StepDone):
                self._unwritten.append(event)
            return
        if self._descriptor is None or self._unwritten:
            told = self._take_over(event)
            if isinstance(event, StepDone) and event.step <= told:
                return  # made again, by one who could not know that it was
        self._append(event)

    def _take_over(self, event: Event) -> int:
        """Tell what the last lead could not; return the last step that it has told of."""
        if self._descriptor is None:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            weakref.finalize(self, os.close, self._descriptor)
        # The last lead may have died between committing a step and telling of it, or with a machine that told late.
        last = self._last_step() if self._unwritten or isinstance(event, StepDone) else -1
        for unwritten in self._unwritten:
            if unwritten.step > last:
                self._append(unwritten)
        self._unwritten.clear()
        return last

    def _last_step(self) -> int:
        last = -1
        for event in read_events(self.path):
            if isinstance(event, StepDone):
                last = event.step
            elif isinstance(event, Loaded):
                last = event.step - 1
        return last

    def _append(self, event: Event) -> None:
        assert self._descriptor is not None
        line = {"event": _NAMES[type(event)], "time": round(time.time(), 3), **asdict(event)}
        self._waiting += (json.dumps(line) + "\n").encode()
        with contextlib.suppress(OSError):  # a full disk ends no job; it is tried again with the next event
            self._waiting = self._waiting[os.write(self._descriptor, self._waiting) :]


class Tail:
    """Reads a stream as it grows. What a kill has cut off, or another version wrote, is left out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._rest = b""

    def read(self) -> Iterator[tuple[float, Event]]:
        """The events since the last time, each with the time at which it was written."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                new = file.read()
        except OSError:
            return
        self._position += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            try:
                event = json.loads(line)["time"], parse(line.decode())
            except (ValueError, KeyError, TypeError):
                continue
            yield event


def parse(line: str) -> Event:
    """The event that *line* holds."""
    fields = json.loads(line)
    kind = _KINDS[fields.pop("event")]
    fields.pop("time", None)
    event: Event = kind(**fields)
    return event


def read_events(path: Path) -> Iterator[Event]:
    """The events of a stream, in order. A last line cut off by a kill is left out."""
    return (event for _, event in read_timed_events(path))


def read_timed_events(path: Path) -> Iterator[tuple[float, Event]]:
    """The events of a stream, each with the time at which it was written."""
    try:
        text = path.read_text()
    except OSError as error:
        raise EventStreamError(f"cannot read the event stream {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise EventStreamError(f"{path} is no event stream: it is not text") from error
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield json.loads(line)["time"], parse(line)
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                return
            raise EventStreamError(f"{path}, line {number}, is not an event of this version: {error!r}") from error
