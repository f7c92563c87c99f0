"""Time that passes when a test lets it."""

from __future__ import annotations


class FakeClock:
    """A clock that stands still: called, it returns ``now``, which a test sets or adds to.

    ``Manager(..., clock=FakeClock(1000.0))``.
    """

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
