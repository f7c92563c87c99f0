"""Time as a manager needs it: it never runs backwards and never stands still, even if the system's clock is set."""

from __future__ import annotations

from collections.abc import Callable


class SteadyClock:
    """Seconds since the epoch as *clock* has them; where it is set back, time goes on from where it was."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_read = clock()
        self._ahead = 0.0  # of the clock, by what it was set back
        self._now = self._last_read

    def __call__(self) -> float:
        read = self._clock()
        self._ahead += max(0.0, self._last_read - read)
        self._last_read = read
        self._now = max(self._now, read + self._ahead)  # by rounding alone it could be less
        return self._now
