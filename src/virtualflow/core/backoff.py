"""When lost workers may be replaced: ever later while the replacements die young, and at last not at all."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from virtualflow.core.mapping import DeviceId

YOUNG_SECONDS = 10.0  # a worker that is lost sooner after it joined was of no use
MAX_LOSSES = 6


@dataclass(slots=True)
class BackOff:
    """Losses in a row: each of a young worker that had joined after the loss before."""

    joined_at: dict[DeviceId, float]  # by device; -inf for workers of the job's start
    losses: int = 0
    not_before: float = 0.0  # when the next replacement may start
    _last: float = field(default=-math.inf, init=False)

    def started(self, devices: Iterable[DeviceId]) -> None:
        """Workers are being started: forget when their predecessors joined."""
        for device in devices:
            self.joined_at.pop(device, None)

    def joined(self, devices: Iterable[DeviceId], now: float) -> None:
        """Workers take part from *now* on."""
        self.joined_at |= dict.fromkeys(devices, now)

    def lost(self, device: DeviceId, now: float) -> None:
        """A worker is lost; one that never joined counts as one that joined just now."""
        joined = self.joined_at.get(device, now)
        if now - joined >= YOUNG_SECONDS:
            self.losses = 1
        elif joined >= self._last or not self.losses:
            self.losses += 1
        self._last = now
        self.not_before = now + min(0.1 * 2.0**self.losses, 10.0)

    def postpone(self, until: float) -> None:
        """No replacement can be started before then, for no fault of its own."""
        self.not_before = max(self.not_before, until)

    def forgive(self) -> None:
        """Count the losses in a row from zero again."""
        self.losses = 0

    def may_start(self, now: float) -> bool:
        return now >= self.not_before

    @property
    def is_hopeless(self) -> bool:
        return self.losses > MAX_LOSSES
