"""Waits for gloo's messages, which may never end: in a thread of their own, so that the training thread can go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

LOOK_SECONDS = 0.25  # between two looks at whether a message can still come to its end
LAST_SECONDS = 0.05  # for one that has come to its end just before its connection was closed
CLOSING_SECONDS = 10.0  # that gloo has for closing connections that were cut, at the most; it takes milliseconds


class _Wait:
    """One wait for a message, by the thread that does nothing else."""

    def __init__(self, work: Any) -> None:
        self._work = work
        self._error: BaseException | None = None
        self._ended = threading.Lock()
        self._ended.acquire()

    def make(self) -> None:
        try:
            self._work.wait()
        except RuntimeError as error:
            self._error = error
        self._work = None  # it holds the memory of the message
        self._ended.release()

    def has_ended(self, within_seconds: float) -> bool:
        """Whether it ends in that time. Raises RuntimeError if the message has failed."""
        if not self._ended.acquire(timeout=within_seconds):
            return False
        if self._error is not None:
            raise self._error
        return True


class MessageWaits:
    """The waits for messages of one group, one after the other.

    When a connection breaks, gloo wakes who waits for a message that has not begun. Of one that was on its way it wakes
    neither its sender nor its receiver, and it can't be asked whether a message has arrived: who waits for it in
    gloo waits for the whole patience.
    """

    def __init__(self, is_closed: Callable[[], bool]) -> None:
        """*is_closed* says whether gloo has closed all connections of the group, after which it touches no buffer."""
        self._is_closed = is_closed
        self._waits: SimpleQueue[_Wait | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def wait(self, work: Any) -> None:
        """Wait for *work*; once a connection was closed in the middle of it, no longer. Raises RuntimeError then."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="waits for messages", daemon=True)
            self._thread.start()
        wait = _Wait(work)
        self._waits.put(wait)
        while not wait.has_ended(LOOK_SECONDS):
            if self._is_closed() and not wait.has_ended(LAST_SECONDS):
                raise RuntimeError("a connection was closed in the middle of a message")

    def wait_until_closed(self) -> None:
        """The connections were cut: wait until gloo touches no buffer any more."""
        end = time.monotonic() + CLOSING_SECONDS
        while not self._is_closed() and time.monotonic() < end:
            time.sleep(0.001)

    def end(self) -> None:
        """There is no other wait to come. One that never ends in gloo may last until its patience does."""
        self._waits.put(None)

    def _run(self) -> None:
        while (wait := self._waits.get()) is not None:
            wait.make()
