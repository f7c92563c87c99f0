"""The server as a thread of the process that it shows."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from virtualflow.manager.api.connections import Limits, OpenConnections, connection_of
from virtualflow.manager.api.server import Server
from virtualflow.manager.api.views import Source
from virtualflow.system.tls import Identity

GRACE_SECONDS = 1  # for answers under way, when it ends
MOST_WAITING = 1024  # connections that the system holds until they are taken


@contextmanager
def serving(
    source: Source,
    token: bytes,
    listening: socket.socket,
    on_down: Callable[[bool], None] = lambda _: None,
    limits: Limits | None = None,
    identity: Identity | None = None,
) -> Iterator[Server]:
    """Answer on the bound socket *listening* until the block ends; encrypted, with an *identity*."""
    server = Server(source, token, on_down)
    limits = limits or Limits.here()
    config = uvicorn.Config(
        server.guard,
        log_level="error",
        timeout_graceful_shutdown=GRACE_SECONDS,
        lifespan="off",
        access_log=False,
        ws="none",
        http=connection_of(OpenConnections(limits)),
        h11_max_incomplete_event_size=limits.head_bytes,
        backlog=limits.at_once,
        ssl_certfile=identity.certificate if identity is not None else None,
        ssl_keyfile=identity.key if identity is not None else None,
    )
    http = _Http(config)
    thread = threading.Thread(target=http.run, args=([listening],), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.should_exit = True
        thread.join(2 * GRACE_SECONDS + 1)


class _Http(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(MOST_WAITING)  # asyncio takes few at once, and means both by its backlog
