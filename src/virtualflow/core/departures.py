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
    """Workers whose collective has failed, and when each of them first reported it."""

    newest_loss: int = 0  # the newest generation that was published because of a loss
    _reported_at: dict[DeviceId, float] = field(default_factory=dict)

    def add(self, device: DeviceId, number: int, now: float) -> None:
        """A collective of generation *number* has failed on *device*."""
        # If all workers know of that loss already, one that has not reported it may simply be busy.
        if number >= self.newest_loss:
            self._reported_at.setdefault(device, now)

    def are_overdue(self, now: float, seconds: float) -> bool:
        """Whether the first report is so old that a worker without one must be stuck."""
        return bool(self._reported_at) and now - min(self._reported_at.values()) > seconds

    def missing_from(self, devices: Sequence[DeviceId]) -> list[DeviceId]:
        """Those of *devices* that have reported nothing."""
        return [device for device in devices if device not in self._reported_at]

    def clear(self) -> None:
        self._reported_at.clear()
