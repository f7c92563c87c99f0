"""The port where workers from other launchers join a job. Without the token it accepts nothing and tells nothing.

The coordinator sends a nonce, the worker answers with its HMAC under the token: the token itself never travels. What
follows is JSON; nothing that comes from the network is unpickled.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import socket
from pathlib import Path
from typing import Any

from virtualflow.errors import LaunchError
from virtualflow.runtime.wire import Wire

ANSWER_SECONDS = 10.0


def parse_address(text: str) -> tuple[str, int]:
    """``HOST:PORT``."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise LaunchError(f"{text!r} is not an address. Expected HOST:PORT, such as 127.0.0.1:29400.")
    return host, int(port)


def read_token(path: Path, *, create: bool) -> bytes:
    """The secret in *path*, made there, for its owner's eyes only, if it may be."""
    try:
        if create and not path.exists():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(32) + "\n")
        token = path.read_text().strip().encode()
    except OSError as error:
        advice = "Name a file in a folder of yours." if create else "Copy it from the job's machine."
        raise LaunchError(f"cannot read the token file {path}: {error.strerror}. {advice}") from error
    except UnicodeDecodeError as error:
        raise LaunchError(f"the token file {path} is not text. Name the file that `vf run --listen` made.") from error
    if len(token) < 16:
        raise LaunchError(f"the token in {path} is shorter than 16 characters; that can be guessed")
    return token


def answer(token: bytes, nonce: str) -> str:
    return hmac.new(token, nonce.encode(), hashlib.sha256).hexdigest()


class Guest:
    """A connection that has not shown the token yet."""

    def __init__(self, connection: socket.socket, token: bytes) -> None:
        connection.setblocking(False)
        self.wire = Wire(connection, largest=4096)
        self.host = connection.getpeername()[0]
        self._token = token
        self._nonce = secrets.token_hex(16)
        self.wire.send(nonce=self._nonce)

    def fileno(self) -> int:
        return self.wire.fileno()

    def admitted(self, message: dict[str, Any]) -> bool:
        """Whether *message* shows the token."""
        return hmac.compare_digest(str(message.get("answer", "")), answer(self._token, self._nonce))


def knock(host: str, port: int, token: bytes) -> tuple[socket.socket, dict[str, Any]]:
    """Join the job at *host*: show the token, and return the connection with what the worker is to do."""
    try:
        connection = socket.create_connection((host, port), timeout=ANSWER_SECONDS)
    except OSError as error:
        raise LaunchError(f"no job answers at {host}:{port}: {error}. Is `vf run --listen` running there?") from error
    try:
        nonce = _line(connection)["nonce"]
        connection.sendall(json.dumps({"answer": answer(token, nonce), "pid": os.getpid()}).encode() + b"\n")
        work = _line(connection)
    except (OSError, ValueError, KeyError) as error:
        connection.close()
        raise LaunchError(f"the job at {host}:{port} refused: the token is not the one of its --token-file") from error
    if "error" in work:
        connection.close()
        raise LaunchError(work["error"])
    connection.settimeout(None)
    return connection, work


def _line(connection: socket.socket) -> dict[str, Any]:
    # Not beyond its end: what follows the line belongs to the worker.
    line = bytearray()
    while not line.endswith(b"\n"):
        seen = connection.recv(1 << 16, socket.MSG_PEEK)
        if not seen:
            raise OSError("the connection was closed")
        line += connection.recv(seen.find(b"\n") + 1 or len(seen))
    message: dict[str, Any] = json.loads(line)
    return message
