"""Ctrl-C and friends: a notice first, then an exception that unwinds every ``with`` block once."""

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
    """What to do when a signal comes: the first is a notice, if a handler takes it; the next one interrupts."""

    def __init__(self) -> None:
        self.on_notice: Callable[[int], bool] | None = None  # gets the signal; returns whether it is heeded
        self.noticed: int | None = None  # the signal that was heeded

    def handle(self, number: int, _: FrameType | None) -> None:
        if self.noticed is None and self.on_notice is not None and self.on_notice(number):
            self.noticed = number
            return
        if self.noticed is not None and number == signal.SIGHUP:
            return  # the kernel and the shell both report a closed terminal: that is no hurry
        for signal_number in _SIGNALS:
            signal.signal(signal_number, signal.SIG_IGN)  # nothing may cut the clean-up short
        raise Interrupted(number)


@contextmanager
def interruptible() -> Iterator[Interrupts]:
    """Raise Interrupted at the first signal that is no notice, and ignore further ones."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    before = {number: handler for number, handler in before.items() if handler != signal.SIG_IGN}  # nohup, or `... &`
    interrupts = Interrupts()
    for number in before:
        signal.signal(number, interrupts.handle)
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
