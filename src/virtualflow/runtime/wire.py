"""JSON messages between the coordinator and its workers: a line each, over a stream socket."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
from dataclasses import asdict
from typing import Any

from virtualflow.core.generation import Generation

LARGEST_MESSAGE = 64 * 2**20
TAKE_SECONDS = 5.0  # for the other end to read on, with hundreds of kilobytes under way


class Wire:
    """One end of a connection. ``send`` may be called from any thread, ``receive`` from one."""

    def __init__(self, connection: socket.socket, largest: int = LARGEST_MESSAGE) -> None:
        self._connection = connection
        self.largest = largest  # bytes of one message that may come
        self._received = b""
        self._sending = threading.RLock()  # a signal handler may send in the middle of a send

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, **message: Any) -> bool:
        """Send a message; return whether the other end was still there to take it."""
        unsent = memoryview(json.dumps(message).encode() + b"\n")
        try:
            with self._sending:
                while unsent:
                    unsent = unsent[self._send_some(unsent) :]
            return True
        except OSError:
            return False

    def _send_some(self, data: memoryview) -> int:
        try:
            return self._connection.send(data)
        except BlockingIOError:
            if not select.select([], [self._connection], [], TAKE_SECONDS)[1]:
                # With half a message in it the connection is of no use any more.
                self._connection.shutdown(socket.SHUT_RDWR)
                raise
            return 0

    def receive(self) -> list[dict[str, Any]] | None:
        """The messages that have come, at least one unless the connection would block; None at its end.

        What is no message ends it. An empty line is one without contents: it shows that the other end is there.
        """
        try:
            data = self._connection.recv(min(self.largest, 1 << 20))
        except BlockingIOError:
            return []
        except OSError:
            return None
        *lines, self._received = (self._received + data).split(b"\n")
        if not data or max(map(len, (self._received, *lines))) > self.largest:
            return None
        try:
            messages = [json.loads(line or b"{}") for line in lines]
        except (ValueError, RecursionError):
            return None  # not one of us
        return messages if all(isinstance(message, dict) for message in messages) else None

    def beat(self) -> None:
        """Show that this end is there."""
        with contextlib.suppress(OSError), self._sending:
            self._connection.send(b"\n")

    def cut(self) -> None:
        """End the connection for both sides; ``receive`` tells of it."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()


def generation_to_json(generation: Generation) -> dict[str, Any]:
    return asdict(generation)


def generation_from_json(fields: dict[str, Any]) -> Generation:
    lists = ("devices", "owners", "joining", "leaving")
    checked: dict[str, Any] = {k: tuple(v) if k in lists and v is not None else v for k, v in fields.items()}
    return Generation(**checked)
