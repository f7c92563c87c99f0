"""The port where workers from other launchers join a job. Without the token it accepts nothing and tells nothing.

The line is encrypted, and the token file names the fingerprint of the job's certificate, so a worker knows whom it
talks to. Each side then shows that it has the token, by an HMAC over the other's nonce and that fingerprint: the token
itself never travels, and an answer is of no use on another connection. What follows is JSON; nothing that comes from
the network is unpickled.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from virtualflow.errors import LaunchError
from virtualflow.job.wire import LARGEST_MESSAGE, Wire
from virtualflow.system import tls

ANSWER_SECONDS = 10.0
_FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}")
_FIRST_WORDS = 4096  # bytes that a connection may say before it has shown the token


@dataclass(frozen=True, slots=True)
class Token:
    """What is in a token file: the secret, and the fingerprint of the certificate of whoever made it."""

    secret: bytes
    fingerprint: str = ""

    def answer(self, side: str, nonce: str) -> str:
        """What shows that *side* has the token, to whoever has sent *nonce*."""
        words = f"{side} {nonce} {self.fingerprint}"
        return hmac.new(self.secret, words.encode(), hashlib.sha256).hexdigest()

    def is_shown_by(self, answer: object, side: str, nonce: str) -> bool:
        shown = answer if isinstance(answer, str) else ""
        return hmac.compare_digest(shown.encode(errors="replace"), self.answer(side, nonce).encode())


def parse_address(text: str) -> tuple[str, int]:
    """``HOST:PORT``."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise LaunchError(f"{text!r} is not an address. Expected HOST:PORT, such as 127.0.0.1:29400.")
    return host, int(port)


def read_token(path: Path, *, create: bool) -> Token:
    """What *path* holds. If it may be made, it is, for its owner's eyes only, with this machine's certificate in it."""
    try:
        if create:
            _make(path, tls.identity().fingerprint)
        secret, *others = path.read_text().split() or [""]
    except OSError as error:
        advice = "Name a file in a folder of yours." if create else "Copy it from the job's machine."
        raise LaunchError(f"cannot read the token file {path}: {error.strerror}. {advice}") from error
    except UnicodeDecodeError as error:
        raise LaunchError(f"the token file {path} is not text. Name the file that `vf run --listen` made.") from error
    if len(secret) < 16:
        raise LaunchError(f"the token in {path} is shorter than 16 characters; that can be guessed")
    return Token(secret.encode(), next(filter(_FINGERPRINT.fullmatch, others), ""))


def _make(path: Path, fingerprint: str) -> None:
    """A new secret if there is none, and the fingerprint of the certificate that this machine has now."""
    words = path.read_text().split() if path.exists() else [secrets.token_hex(32)]
    if fingerprint in words:
        return
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write("\n".join([*words[:1], fingerprint]) + "\n")
    partial.replace(path)


class Guest:
    """A connection that has not shown the token yet."""

    def __init__(self, connection: socket.socket, host: str, token: Token) -> None:
        connection.setblocking(False)
        self.wire = Wire(connection, largest=_FIRST_WORDS)
        self.host = host
        self._token = token
        self._nonce = secrets.token_hex(16)
        self.wire.send(nonce=self._nonce)

    def fileno(self) -> int:
        return self.wire.fileno()

    def close(self) -> None:
        self.wire.close()

    def admitted(self, message: dict[str, Any]) -> bool:
        """Whether *message* shows the token; if so, show it, too."""
        if not self._token.is_shown_by(message.get("answer"), "guest", self._nonce):
            return False
        self.wire.largest = LARGEST_MESSAGE
        return self.wire.send(answer=self._token.answer("job", str(message.get("nonce"))))


def knock(host: str, port: int, token: Token) -> tuple[socket.socket, str, dict[str, Any]]:
    """Join the job at *host*: show the token; return the line, this machine's address, and what the worker is to do."""
    if not token.fingerprint:
        raise LaunchError(
            "the token file names no certificate, so this machine can't know whether it talks to the job. Copy the "
            "whole file again from the job's machine."
        )
    try:
        connection, address = tls.connect(host, port, token.fingerprint, ANSWER_SECONDS)
    except OSError as error:
        raise LaunchError(f"no job answers at {host}:{port}: {error}. Is `vf run --listen` running there?") from error
    connection.settimeout(ANSWER_SECONDS)
    try:
        nonce = secrets.token_hex(16)
        answer = token.answer("guest", _line(connection)["nonce"])
        connection.sendall(json.dumps({"answer": answer, "nonce": nonce, "pid": os.getpid()}).encode() + b"\n")
        shown = _line(connection)["answer"]
    except (OSError, ValueError, KeyError) as error:
        connection.close()
        raise LaunchError(f"the job at {host}:{port} refused: the token is not the one of its --token-file") from error
    if not token.is_shown_by(shown, "job", nonce):
        connection.close()
        raise LaunchError(f"the server at {host}:{port} does not have the token: it is not the job")
    try:
        work = _line(connection)
    except (OSError, ValueError) as error:
        connection.close()
        raise LaunchError(f"the job at {host}:{port} went away: {error}") from error
    if "error" in work:
        connection.close()
        raise LaunchError(str(work["error"]))
    connection.settimeout(None)
    return connection, address, work


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
