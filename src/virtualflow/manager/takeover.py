"""What a new manager makes of the jobs that an earlier one has left: which run on what, and which wait."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from virtualflow.core.job_state import JobState
from virtualflow.manager.record import Record, Wish


@dataclass(frozen=True, slots=True)
class Takeover:
    """Jobs that count for the scheduler, in the order of the records."""

    running: tuple[Record, ...]  # each with the devices that it may keep
    waiting: tuple[Record, ...]


def taken_over(records: Iterable[Record], devices: Iterable[str]) -> Takeover:
    """Let jobs that run keep those of the cluster's *devices* that they have: none is given to two of them."""
    free = set(devices)
    running: list[Record] = []
    waiting: list[Record] = []
    for record in records:
        if record.is_over or record.state == JobState.PAUSED or record.wish in (Wish.PAUSE, Wish.CANCEL):
            continue
        runs_alone = record.state == JobState.RUNNING and record.beside is None
        kept = tuple(device for device in record.devices if device in free) if runs_alone else ()
        free -= set(kept)
        (running if kept else waiting).append(replace(record, devices=kept, beside=None))
    return Takeover(tuple(running), tuple(waiting))
