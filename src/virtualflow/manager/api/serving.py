"""The server as a thread of the process that it shows."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from virtualflow.manager.api.connections import Limits, OpenConnections, connection_of
from virtualflow.manager.api.server import Server
from virtualflow.manager.api.views import Source
from virtualflow.manager.token_book import TokenBook
from virtualflow.system import tls
from virtualflow.system.identity import Identity

GRACE_SECONDS = 1  # for answers under way, when it ends
MOST_WAITING = 1024  # connections that the system holds until they are taken


@contextmanager
def serving(
    source: Source,
    book: TokenBook,
    listening: socket.socket,
    on_down: Callable[[bool], None] = lambda _: None,
    limits: Limits | None = None,
    identity: Identity | None = None,
    folder: Path | None = None,
) -> Iterator[Server]:
    """Answer on the bound socket *listening* until the block ends; encrypted, with an *identity*.

    *folder*: where the audit log is kept, if one is.
    """
    server = Server(source, book, on_down, folder)
    context = tls.server_context(identity) if identity is not None else None
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
        ssl_context_factory=(lambda _, __: context) if context is not None else None,
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
