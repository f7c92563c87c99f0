"""Maintenance windows: times in which a device is taken out, and put back after."""

from __future__ import annotations

from dataclasses import dataclass

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
