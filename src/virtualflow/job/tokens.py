"""The token that lets workers from other launchers join a job. Who does not have it learns nothing.

The line is encrypted, and the token file names the fingerprint of the job's certificate, so a worker knows that it is
connected to the job. Each side then shows that it has the token, by an HMAC over the other's nonce and that
fingerprint: the token itself never travels, and an answer is of no use on another connection. What follows are messages
of ``job.wire_messages``; nothing that comes from the network is unpickled.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from virtualflow.errors import LaunchError, MessageError
from virtualflow.job.json_lines import decoded, encoded
from virtualflow.job.wire import Wire
from virtualflow.job.wire_messages import (
    ASSIGNMENTS,
    CHALLENGES,
    FROM_WORKER,
    JOB_PROOFS,
    TOKEN_PROOFS,
    Challenge,
    FromWorker,
    JobProof,
    Refusal,
    TokenProof,
    WorkAssigned,
)
from virtualflow.system import private_files, tls
from virtualflow.system.identity import Identity

ANSWER_SECONDS = 10.0
WORKER, JOB = "worker", "job"  # the two sides of a handshake
_FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}")
_PROOF_BYTES = 4096  # that a connection may send before it has shown the token


@dataclass(frozen=True, slots=True)
class Token:
    """What is in a token file: the secret, and the fingerprint of its creator's certificate."""

    secret: bytes
    fingerprint: str = ""

    def proof(self, side: str, nonce: str) -> str:
        """Proves to the sender of *nonce* that *side* has the token."""
        words = f"{side} {nonce} {self.fingerprint}"
        return hmac.new(self.secret, words.encode(), hashlib.sha256).hexdigest()

    def is_proven_by(self, answer: str, side: str, nonce: str) -> bool:
        return hmac.compare_digest(answer.encode(errors="replace"), self.proof(side, nonce).encode())


def parse_address(text: str) -> tuple[str, int]:
    """``HOST:PORT``."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise LaunchError(f"{text!r} is not an address. Expected HOST:PORT, such as 127.0.0.1:29400.")
    return host, int(port)


def made_token(path: Path, own: Identity) -> Token:
    """What *path* holds, for its owner's eyes only, with the fingerprint of *own* in it. A missing one is made."""
    return _read(path, own.fingerprint)


def read_token(path: Path) -> Token:
    """What *path* holds."""
    return _read(path, "")


def _read(path: Path, fingerprint: str) -> Token:
    """*fingerprint*: of the certificate that is to be in it; empty if this is another's file."""
    try:
        if fingerprint:
            write_token(path, fingerprint)
        secret, *others = path.read_text().split() or [""]
    except OSError as error:
        advice = "Name a file in a folder of yours." if fingerprint else "Copy it from the job's machine."
        raise LaunchError(f"cannot read the token file {path}: {error.strerror}. {advice}") from error
    except UnicodeDecodeError as error:
        raise LaunchError(f"the token file {path} is not text. Name the file that `vf run --listen` made.") from error
    if len(secret) < 16:
        raise LaunchError(f"the token in {path} is shorter than 16 characters; that can be guessed")
    return Token(secret.encode(), next(filter(_FINGERPRINT.fullmatch, others), ""))


def write_token(path: Path, fingerprint: str, secret: str = "") -> None:
    """*secret*; or without one that of the file, or a new one; and the *fingerprint* of the server's certificate."""
    words = [secret] if secret else path.read_text().split() if path.exists() else [secrets.token_hex(32)]
    if fingerprint in words[1:]:
        private_files.close(path)
        return
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write("\n".join([*words[:1], fingerprint]).strip() + "\n")
    partial.replace(path)


class JoinRequest:
    """A connection of a worker that wants to join, and has not shown the token yet."""

    def __init__(self, connection: socket.socket, host: str, token: Token) -> None:
        connection.setblocking(False)
        self.wire = Wire(connection, TOKEN_PROOFS, _PROOF_BYTES)
        self.host = host
        self._token = token
        self._nonce = secrets.token_hex(16)
        self.wire.send(Challenge(self._nonce))

    def fileno(self) -> int:
        return self.wire.fileno()

    def close(self) -> None:
        self.wire.close()

    def accept(self, proof: TokenProof) -> Wire[FromWorker] | None:
        """The line to the worker, if *proof* shows the token; the worker is then shown it, too."""
        if not self._token.is_proven_by(proof.answer, WORKER, self._nonce):
            return None
        if not self.wire.send(JobProof(self._token.proof(JOB, proof.nonce))):
            return None
        return self.wire.expecting(FROM_WORKER)


@dataclass(frozen=True, slots=True)
class Joined:
    """A worker's line to the job that has let it in."""

    connection: socket.socket
    address: str  # this machine's, as the job sees it
    work: WorkAssigned


def connect(host: str, port: int, token: Token) -> Joined:
    """Join the job that listens at *host*, after both sides have shown the token."""
    if not token.fingerprint:
        raise LaunchError(
            "the token file names no certificate, so this machine can't know whether it is the job that answers. Copy "
            "the whole file again from the job's machine."
        )
    try:
        connection, address = tls.connect(host, port, token.fingerprint, ANSWER_SECONDS)
    except OSError as error:
        raise LaunchError(f"no job answers at {host}:{port}: {error}. Is `vf run --listen` running there?") from error
    connection.settimeout(ANSWER_SECONDS)
    try:
        work = _handshake(connection, token, f"{host}:{port}")
    except LaunchError:
        connection.close()
        raise
    connection.settimeout(None)
    return Joined(connection, address, work)


def _handshake(connection: socket.socket, token: Token, place: str) -> WorkAssigned:
    try:
        nonce = secrets.token_hex(16)
        answer = token.proof(WORKER, decoded(CHALLENGES, _line(connection)).nonce)
        connection.sendall(encoded(TokenProof(answer, nonce, os.getpid())) + b"\n")
        proof = decoded(JOB_PROOFS, _line(connection))
    except (OSError, MessageError) as error:
        raise LaunchError(f"the job at {place} refused: the token is not the one of its --token-file") from error
    if not token.is_proven_by(proof.answer, JOB, nonce):
        raise LaunchError(f"the server at {place} does not have the token, so it is not the job")
    try:
        work = decoded(ASSIGNMENTS, _line(connection))
    except OSError as error:
        raise LaunchError(f"the job at {place} went away: {error}") from error
    except MessageError as error:
        raise LaunchError(f"the job at {place} runs another version of VirtualFlow: {error}") from error
    if isinstance(work, Refusal):
        raise LaunchError(work.error)
    return work


def _line(connection: socket.socket) -> bytes:
    # Not beyond its end: what follows the line belongs to the worker.
    line = bytearray()
    while not line.endswith(b"\n"):
        seen = connection.recv(1 << 16, socket.MSG_PEEK)
        if not seen:
            raise OSError("the connection was closed")
        line += connection.recv(seen.find(b"\n") + 1 or len(seen))
    return bytes(line)
