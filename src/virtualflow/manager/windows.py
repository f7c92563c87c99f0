"""Maintenance windows: times in which a device is taken out, and put back after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from virtualflow.errors import ManagerError

LEAD_SECONDS = 60.0  # before a window, so that jobs have left the device when it begins


@dataclass(frozen=True, slots=True)
class Window:
    """In seconds since the epoch. *drained*: the window has taken the device out; it was not out before."""

    device: str
    begin: float
    end: float
    drained: bool = False

    def check(self, now: float) -> None:
        if not now < self.end < 1e11:
            raise ManagerError("the window is over already: give a time to come for its end")
        if not 0 <= self.begin < self.end:
            raise ManagerError("the window ends before it begins")

    def is_open(self, now: float) -> bool:
        return self.begin - LEAD_SECONDS <= now < self.end


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be done about one device: save *noted*, then see to it that it is *out* or not, then drop *over*."""

    noted: tuple[Window, ...]
    out: bool
    over: tuple[Window, ...]


def due_of(windows: Sequence[Window], is_out: bool, now: float) -> Due:
    """*windows* are all of one device; they may overlap. Who else has taken it out has to put it back."""
    ours = not is_out or any(window.drained for window in windows)
    opened = [window for window in windows if window.is_open(now)]
    noted = tuple(replace(window, drained=True) for window in opened if ours and not window.drained)
    return Due(noted, bool(opened) if ours else is_out, tuple(window for window in windows if now >= window.end))
