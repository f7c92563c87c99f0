"""Ctrl-C and friends, as an exception that unwinds every ``with`` block once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """The user, or the system, wants this to end."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number = signal_number


class Interrupts:
    """What to do when a signal comes. A SIGTERM is a notice first, if somebody wants to hear it."""

    def __init__(self) -> None:
        self.on_notice: Callable[[], None] | None = None

    def handle(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGTERM and self.on_notice is not None:
            notice, self.on_notice = self.on_notice, None
            notice()
            return
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)  # nothing may cut the clean-up short
        raise Interrupted(number)


@contextmanager
def interruptible() -> Iterator[Interrupts]:
    """Raise Interrupted at the first signal, and ignore further ones."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    interrupts = Interrupts()
    for number in _SIGNALS:
        signal.signal(number, interrupts.handle)
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
