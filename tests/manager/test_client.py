"""A manager's client: what it says of an address that answers otherwise than it expects."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from virtualflow.errors import ManagerError
from virtualflow.manager.client import Client


class Plain(BaseHTTPRequestHandler):
    """Speaks HTTP, without encryption."""

    def log_message(self, *_: Any) -> None:
        """Nothing is logged."""


@pytest.fixture
def plain_port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Plain) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_https_to_a_manager_without_encryption_says_which_address_to_use(plain_port: int) -> None:
    client = Client(f"https://127.0.0.1:{plain_port}", "token", "ab" * 32)
    with pytest.raises(ManagerError, match=f"is not encrypted: use http://127.0.0.1:{plain_port}$"):
        client.get("/api/jobs")
