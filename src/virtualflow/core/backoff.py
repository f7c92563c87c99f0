"""When lost workers may be replaced: ever later while the replacements die young, and at last not at all."""

from __future__ import annotations

import math
from dataclasses import dataclass

YOUNG_SECONDS = 10.0  # a worker that is lost sooner after it joined was of no use
MOST_LOSSES = 6


@dataclass(slots=True)
class BackOff:
    """Losses in a row: each of a young worker that had joined after the loss before."""

    losses: int = 0
    not_before: float = 0.0  # when the next replacement may start
    _last: float = -math.inf

    def note(self, joined: float, now: float) -> None:
        """A worker that had *joined* then is lost; one that never joined has done so *now*."""
        if now - joined >= YOUNG_SECONDS:
            self.losses = 1
        elif joined >= self._last or not self.losses:
            self.losses += 1
        self._last = now
        self.not_before = now + min(0.1 * 2.0**self.losses, 10.0)

    @property
    def is_hopeless(self) -> bool:
        return self.losses > MOST_LOSSES
