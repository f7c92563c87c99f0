"""Messages over a stream socket, a line of JSON each, between the coordinator and its workers or verbs."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections import deque
from typing import Generic, TypeVar, cast

from msgspec.json import Decoder

from virtualflow.errors import MessageError
from virtualflow.job.json_lines import decoded, encoded
from virtualflow.job.wire_messages import Heartbeat, Message

MAX_MESSAGE_BYTES = 64 * 2**20
BEATS = 4  # heartbeats within the other end's patience
READ_ON_SECONDS = 5.0  # for the other end to read on, with hundreds of kilobytes under way
Incoming = TypeVar("Incoming")
OtherIncoming = TypeVar("OtherIncoming")


class Wire(Generic[Incoming]):
    """One end of a connection. ``send`` may be called from any thread, ``receive`` from one.

    If the socket does not block, neither does ``send``: what the other end has not read goes out with the next
    ``flush``, and the connection is cut if that takes too long.
    """

    def __init__(
        self, connection: socket.socket, decoder: Decoder[Incoming], max_bytes: int = MAX_MESSAGE_BYTES
    ) -> None:
        """*decoder* knows the messages that may come, of *max_bytes* at most."""
        self._connection = connection
        self._decoder = decoder
        self._max_bytes = max_bytes
        self._received = b""
        self._unsent: deque[bytes] = deque()
        self._read_on_at = time.monotonic()
        self._sending = threading.RLock()
        self._is_flushing = False
        self._process = os.getpid()

    def expecting(self, decoder: Decoder[OtherIncoming], max_bytes: int = MAX_MESSAGE_BYTES) -> Wire[OtherIncoming]:
        """The same end, where other messages come from now on."""
        other = cast(Wire[OtherIncoming], self)
        other._decoder, other._max_bytes = decoder, max_bytes
        return other

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: Message) -> bool:
        """Send a message; return whether the other end was still there to read it."""
        return self.send_line(encoded(message))

    def send_line(self, line: bytes) -> bool:
        """The same for a message that is encoded already, as one for many others is."""
        return self._send(line + b"\n")

    def beat(self) -> None:
        """Show that this end is there."""
        self._send(b"\n")

    def flush(self) -> bool:
        """Send what has been waiting; return whether the other end is still there to read it."""
        with self._sending:
            if self._is_flushing:
                return True  # this is a signal handler in the middle of a flush, which sees to it
            self._is_flushing = True
            try:
                while self._unsent:
                    sent = self._connection.send(self._unsent[0])
                    self._read_on_at = time.monotonic()
                    if sent == len(self._unsent[0]):
                        self._unsent.popleft()
                    else:
                        self._unsent[0] = self._unsent[0][sent:]
            except BlockingIOError:
                if time.monotonic() - self._read_on_at > READ_ON_SECONDS:
                    self.cut()
            except OSError:
                return False
            finally:
                self._is_flushing = False
        return True

    def _send(self, data: bytes) -> bool:
        if os.getpid() != self._process:
            return False  # a fork of this process has the line, too, and must not speak on it
        with self._sending:
            if not self._unsent:
                self._read_on_at = time.monotonic()
            self._unsent.append(data)
            return self.flush()

    def is_readable(self, seconds: float) -> bool:
        """Wait for so long at most; return whether there is something to receive."""
        waiting = select.poll()
        waiting.register(self._connection, select.POLLIN)
        return bool(waiting.poll(1000 * seconds))

    def receive(self) -> list[Incoming | Heartbeat] | None:
        """The messages that have come, none if the connection would block or one is not whole; None at its end.

        Raises MessageError if something else has come: the connection is of no use then.
        """
        try:
            data = self._connection.recv(min(self._max_bytes, 1 << 20))
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        *lines, self._received = (self._received + data).split(b"\n")
        if (longest := max(map(len, (self._received, *lines)))) > self._max_bytes:
            raise MessageError(f"a message of {longest} bytes or more: the limit here is {self._max_bytes}")
        return [decoded(self._decoder, line) if line else Heartbeat() for line in lines]

    def cut(self) -> None:
        """End the connection for both sides; ``receive`` shows it."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()
