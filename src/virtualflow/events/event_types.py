"""The events of a job, and how one becomes a line of JSON and a line becomes an event again."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The facts of a run: what decides its bits, and how it was laid out.

    With stages no device runs a whole virtual node: then *cells* has, for each stage, the device of each virtual node,
    and *shadows* for each stage those that hold it besides; *mapping* is empty.
    """

    facts: dict[str, Any]
    devices: list[str]
    mapping: list[str]
    waves: int
    cells: list[list[str]] = field(default_factory=list)
    shadows: list[list[str]] = field(default_factory=list)
    copies: int = 1  # on how many devices each stage is kept, if there are as many


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
    metrics: dict[str, float] = field(default_factory=dict)  # of the global batch, by name
    phase: str = ""  # of a Trainer that has several
    batch: int = 0  # of its epoch, from 0 on: several phases may be steps of one


@dataclass(frozen=True, slots=True)
class EpochEnded:
    epoch: int
    step: int
    digest: str


@dataclass(frozen=True, slots=True)
class Evaluated:
    step: int
    value: float
    name: str


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
    """A new generation. ``pause_ms`` is how long the lead stood still for it, and on what; the rest as at the start."""

    generation: int
    step: int
    cause: str  # "resize" or "loss"
    devices: list[str]
    joined: list[str]
    left: list[str]
    mapping: list[str]
    pause_ms: dict[str, float]
    cells: list[list[str]] = field(default_factory=list)
    shadows: list[list[str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ReplicasAligned:
    """Workers on other device types had rounded differently, and got the lead's model."""

    step: int
    ranks: list[str]


@dataclass(frozen=True, slots=True)
class CorruptionFound:
    """A sentinel has found that a device computed, sent or kept something wrongly, before *step* was committed."""

    step: int
    device: str  # empty if it is not known
    what: str  # "virtual node", "sums", "received sums", "state" or "state transfer"
    action: str  # "drained", "set right", "replayed" or "sent again"
    node: int
    text: str  # for people


StreamEvent = (
    RunStarted
    | EpochStarted
    | StepDone
    | EpochEnded
    | Evaluated
    | Saved
    | Loaded
    | Regrouped
    | ReplicasAligned
    | CorruptionFound
)
_TYPES: dict[str, type[Any]] = {
    "run started": RunStarted,
    "epoch started": EpochStarted,
    "step": StepDone,
    "epoch ended": EpochEnded,
    "evaluated": Evaluated,
    "saved": Saved,
    "loaded": Loaded,
    "regrouped": Regrouped,
    "replicas aligned": ReplicasAligned,
    "corruption found": CorruptionFound,
}
_NAMES = {event_type: name for name, event_type in _TYPES.items()}


def encode(event: StreamEvent, time: float) -> bytes:
    """The line, without its end, that records *event* as written at *time*."""
    return json.dumps({"event": _NAMES[type(event)], "time": round(time, 3), **asdict(event)}).encode()


def decode(line: bytes) -> tuple[float, StreamEvent] | None:
    """The time and the event that *line* records; None if it is damaged, or of another version."""
    try:
        # Not msgspec's decoder: a loss that is not a number has no word in strict JSON.
        fields = json.loads(line)
        event: StreamEvent = msgspec.convert(fields, _TYPES[fields["event"]])
        time = float(fields["time"])
        return (time, event) if math.isfinite(time) else None
    except (ValueError, KeyError, TypeError, RecursionError):  # msgspec's ValidationError is a ValueError
        return None
