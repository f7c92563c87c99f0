"""How workers leave a job: announced by a notice, or noticed by those whose collectives fail."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from virtualflow.core.mapping import DeviceId


@dataclass(slots=True)
class LeaveNotices:
    """Devices whose workers got a preemption notice: their end is no failure."""

    devices: set[DeviceId] = field(default_factory=set)
    newest_at: float = 0.0

    def add(self, device: DeviceId, now: float) -> None:
        self.devices.add(device)
        self.newest_at = now

    def remove(self, devices: Iterable[DeviceId]) -> None:
        self.devices -= set(devices)

    def include_any(self, devices: Iterable[DeviceId]) -> bool:
        return not self.devices.isdisjoint(devices)

    def include_all(self, devices: Iterable[DeviceId]) -> bool:
        return self.devices.issuperset(devices)


@dataclass(slots=True)
class LossReports:
    """Workers whose collective has failed though none is known to be lost, and whom that leaves to wait for.

    The first time all get another generation, which frees those who still wait in the broken one. Only who has sent
    nothing since then, though others have tried it and failed, is stopped or stuck in the user's code.
    """

    newest_loss: int = 0  # the newest generation that was published because of a loss, or of such reports
    is_second_try: bool = False  # whether it was because of reports
    _first_at: float | None = None  # when the first report came that is about it, or a later one
    _heard_of: set[DeviceId] = field(default_factory=set)  # who has reported anything since it was published

    def add(self, device: DeviceId, number: int, now: float) -> None:
        """A collective of generation *number* has failed on *device*."""
        self._heard_of.add(device)
        # If all workers know of that loss already, one that has not reported it may simply be busy.
        if number >= self.newest_loss and self._first_at is None:
            self._first_at = now

    def are_overdue(self, devices: Sequence[DeviceId], now: float, seconds: float) -> bool:
        """Whether the first report is *seconds* old, or all of *devices* have reported something at the first try."""
        if self._first_at is None:
            return False
        return now - self._first_at > seconds or not (self.is_second_try or set(devices) - self._heard_of)

    def stuck(self, devices: Sequence[DeviceId]) -> list[DeviceId]:
        """Those of *devices* that keep the others from forming a group."""
        return [device for device in devices if device not in self._heard_of] if self.is_second_try else []

    def clear(self) -> None:
        self._first_at = None
        self._heard_of.clear()
        self.is_second_try = False
