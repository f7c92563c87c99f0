"""The server as a thread beside whatever it shows."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from virtualflow.dashboard.server import Server
from virtualflow.dashboard.views import Source

GRACE_SECONDS = 1  # for answers under way, when it ends


@contextmanager
def serving(
    source: Source, token: bytes, listening: socket.socket, on_down: Callable[[bool], None] = lambda _: None
) -> Iterator[Server]:
    """Answer on the bound socket *listening* until the block ends."""
    server = Server(source, token, on_down)
    config = uvicorn.Config(
        server.guard,
        log_level="error",
        timeout_graceful_shutdown=GRACE_SECONDS,
        lifespan="off",
        access_log=False,
        ws="none",
    )
    http = uvicorn.Server(config)
    thread = threading.Thread(target=http.run, args=([listening],), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.should_exit = True
        thread.join(2 * GRACE_SECONDS + 1)
