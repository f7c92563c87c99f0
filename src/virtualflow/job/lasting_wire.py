"""A worker's end of its line, which goes on to another coordinator if the first one dies."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable

from virtualflow.job.wire import Wire
from virtualflow.job.wire_messages import (
    TO_WORKER,
    EarlyResult,
    FileRead,
    FileWritten,
    FirstLoopLeft,
    Leaving,
    Message,
    ModuleLoaded,
    ToWorker,
    TrainerMade,
    VerdictReached,
    WorkerReport,
)

TRIES, TRY_SECONDS = 10, 0.05  # until another thread has noticed that the coordinator is gone
LASTING = (  # true ever after
    TrainerMade,
    FirstLoopLeft,
    EarlyResult,
    ModuleLoaded,
    FileRead,
    FileWritten,
    Leaving,
    VerdictReached,
)


class LastingWire(Wire[ToWorker]):
    """Keeps what any coordinator of the job must know; what it says of the membership is in a report."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection, TO_WORKER)
        self._lasting: list[Message] = []
        self.is_moving = False  # its coordinator is gone, and another one is looked for

    def send(self, message: Message) -> bool:
        with self._sending:
            if isinstance(message, LASTING):
                self._lasting.append(message)
            return super().send(message)

    def keep(self, message: Message) -> None:
        """Have the next coordinator know what this one has said: it has that from workers who may be gone by then."""
        with self._sending:
            self._lasting.append(message)

    def send_last(self, message: Message) -> None:
        """Send the last message before this process ends: if the coordinator is gone, to the next one."""
        tries = TRIES
        while not self.send(message) and (tries or self.is_moving):
            tries = max(0, tries - 1)
            time.sleep(TRY_SECONDS)

    def move_to(self, connection: socket.socket, report: Callable[[], WorkerReport]) -> None:
        """Go on over another connection: first what *report* returns, then what lasts. The rest is dropped.

        Whoever changes what the report says, and sends a message about that, must do it in this order.
        """
        with self._sending:
            old, self._connection = self._connection, connection
            self._received, self._unsent = b"", deque()
            old.close()
            super().send(report())
            for message in self._lasting:
                super().send(message)
