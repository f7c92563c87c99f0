"""Connections that send nothing, or little, or come in great numbers, are not in the way of those who have the token.

uvicorn waits for ever for the rest of a request, and its ``limit_concurrency`` turns everybody away alike. Here a
*stranger*, a connection that has not shown the token yet, has a few seconds for everything; when there are
too many of them, the one that came first makes room. Those who were let in get a deadline for each request.
"""

from __future__ import annotations

import asyncio
import resource
from dataclasses import dataclass
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

ADMIT = "vf.admit"  # in a request's state: to be called once it has shown that it may be here
LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Limits:
    """What connections may take."""

    stranger_seconds: float = 15.0  # from its first moment until it has shown the token
    head_seconds: float = 15.0  # between a request and the whole head of the next one
    body_seconds: float = 20.0  # for a body, and more for each
    bytes_per_second: float = 64 << 10  # of it
    head_bytes: int = 16 << 10
    connections: int = 512
    of_one_address: int = 256  # strangers
    at_once: int = 64  # new ones between two looks at those that are there: a request is read before 2 x 64 more come

    @classmethod
    def here(cls) -> Limits:
        """As far as this process's descriptors go: half of them, and it needs others."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = 512 if soft == resource.RLIM_INFINITY else max(8, min(512, soft // 2))
        return cls(connections=most, of_one_address=most // 2, at_once=most // 8)


class OpenConnections:
    """The connections of one server."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._strangers: dict[Connection, str] = {}  # by address, oldest first
        self._by_address: dict[str, dict[Connection, None]] = {}
        self._admitted: set[Connection] = set()

    def enter(self, connection: Connection, address: str) -> None:
        """One more; if that is too many, the first of the strangers goes: of its own address, or of all."""
        self._strangers[connection] = address
        mates = self._by_address.setdefault(address, {})
        mates[connection] = None
        if len(mates) > self.limits.of_one_address:
            self.cut(next(iter(mates)))
        while self._strangers and len(self._strangers) + len(self._admitted) > self.limits.connections:
            self.cut(next(iter(self._strangers)))

    def admit(self, connection: Connection) -> None:
        if connection in self._strangers:
            self.leave(connection)
            self._admitted.add(connection)

    def leave(self, connection: Connection) -> None:
        self._admitted.discard(connection)
        address = self._strangers.pop(connection, None)
        if address is not None and (mates := self._by_address.get(address)) is not None:
            mates.pop(connection, None)
            if not mates:
                del self._by_address[address]

    def cut(self, connection: Connection) -> None:
        self.leave(connection)
        connection.transport.abort()

    def is_stranger(self, connection: Connection) -> bool:
        return connection in self._strangers


class Connection(H11Protocol):
    """uvicorn's, with deadlines. A subclass for each server knows its *open_connections*."""

    open_connections: OpenConnections

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.app_state = {**self.app_state, ADMIT: self._admit}
        self._timer: asyncio.TimerHandle | None = None
        self._waits_for_body = False
        self._begun = 0.0
        self._received = 0  # of the present request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.open_connections.enter(self, self.client[0] if self.client else "")
        self._call_later(self.open_connections.limits.stranger_seconds, self._end)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        self.open_connections.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        try:
            super().data_received(data)
        except Exception:  # bad input ends that connection alone
            self.open_connections.cut(self)
            return
        if not self.open_connections.is_stranger(self):
            self._expect()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.open_connections.is_stranger(self) and not self.transport.is_closing():
            self._call_later(self.open_connections.limits.head_seconds, self._end)
            self._waits_for_body, self._received = False, 0
            self._expect()

    def _admit(self) -> None:
        if self.open_connections.is_stranger(self):
            self.open_connections.admit(self)
            self._cancel()
            self._expect()

    def _expect(self) -> None:
        """Look what is still to come of the present request."""
        waits = self.conn.their_state is h11.SEND_BODY
        if waits and not self._waits_for_body:
            self._begun = self.loop.time()
            self._call_later(self.open_connections.limits.body_seconds, self._end_if_slow)
        elif not waits and self.conn.their_state is not h11.IDLE:  # all of it is here
            self._cancel()
        self._waits_for_body = waits

    def _end_if_slow(self) -> None:
        limits = self.open_connections.limits
        due = self._begun + limits.body_seconds + self._received / limits.bytes_per_second
        if due > self.loop.time():
            self._call_later(due - self.loop.time(), self._end_if_slow)
        else:
            self._end()

    def _end(self) -> None:
        if self._owes_an_answer() and not self.transport.is_closing():
            self.transport.write(LATE)
        self.open_connections.leave(self)
        if self.transport.get_write_buffer_size():  # it does not even read
            self.transport.abort()
        else:
            self.transport.close()

    def _owes_an_answer(self) -> bool:
        if self.conn.their_state is h11.IDLE:
            return bool(self.conn.trailing_data[0])  # a part of a head
        return self.cycle is not None and not self.cycle.response_started

    def _call_later(self, seconds: float, what: Any) -> None:
        self._cancel()
        self._timer = self.loop.call_later(seconds, what)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def connection_of(open_connections: OpenConnections) -> type[Connection]:
    """What uvicorn is to make of each connection."""
    return type("Connection", (Connection,), {"open_connections": open_connections})
