"""The advice for one line of a script."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """What an advice asks of its reader."""

    CHANGE = "change"  # the port is wrong without it
    CHECK = "check"  # it works, on a condition that a reader of the script can judge
    CANNOT = "can't"  # VirtualFlow has nothing for it


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do about one line of a script."""

    line: int
    seen: str  # the line itself
    instead: str
    severity: Severity
