"""JSON messages between the coordinator and its workers: a line each, over a stream socket."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from collections import deque
from dataclasses import asdict
from typing import Any

from virtualflow.core.generation import Generation

LARGEST_MESSAGE = 64 * 2**20
BEATS = 4  # signs of life within the other end's patience
TAKE_SECONDS = 5.0  # for the other end to read on, with hundreds of kilobytes under way


class Wire:
    """One end of a connection. ``send`` may be called from any thread, ``receive`` from one.

    If the socket does not block, neither does ``send``: what the other end has not taken goes out with the next
    ``flush``, and the connection is cut if that takes too long.
    """

    def __init__(self, connection: socket.socket, largest: int = LARGEST_MESSAGE) -> None:
        self._connection = connection
        self.largest = largest  # bytes of one message that may come
        self._received = b""
        self._unsent: deque[bytes] = deque()
        self._taken_at = time.monotonic()
        self._sending = threading.RLock()
        self._is_flushing = False

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, **message: Any) -> bool:
        """Send a message; return whether the other end was still there to take it."""
        return self._send(json.dumps(message).encode() + b"\n")

    def beat(self) -> None:
        """Show that this end is there."""
        self._send(b"\n")

    def flush(self) -> bool:
        """Send what has been waiting; return whether the other end is still there to take it."""
        with self._sending:
            if self._is_flushing:
                return True  # this is a signal handler in the middle of a flush, which sees to it
            self._is_flushing = True
            try:
                while self._unsent:
                    sent = self._connection.send(self._unsent[0])
                    self._taken_at = time.monotonic()
                    if sent == len(self._unsent[0]):
                        self._unsent.popleft()
                    else:
                        self._unsent[0] = self._unsent[0][sent:]
            except BlockingIOError:
                if time.monotonic() - self._taken_at > TAKE_SECONDS:
                    self.cut()
            except OSError:
                return False
            finally:
                self._is_flushing = False
        return True

    def _send(self, data: bytes) -> bool:
        with self._sending:
            if not self._unsent:
                self._taken_at = time.monotonic()
            self._unsent.append(data)
            return self.flush()

    def has_news(self, seconds: float) -> bool:
        """Wait for so long at most; return whether there is something to receive."""
        waiting = select.poll()
        waiting.register(self._connection, select.POLLIN)
        return bool(waiting.poll(1000 * seconds))

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
