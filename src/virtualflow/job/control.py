"""How ``vf`` verbs reach the coordinator of a running job: one request, one answer, over a Unix socket."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager

from virtualflow.errors import LaunchError, MessageError, UnreachableError
from virtualflow.job.folder import JobFolder
from virtualflow.job.json_lines import decoded, encoded
from virtualflow.job.status import JobStatus
from virtualflow.job.wire_messages import ANSWERS, GetStatus, JobRequest, Refusal

ANSWER_SECONDS = 10.0
CONTROL = "control.sock"
SUCCESSION = "succession.sock"  # where a coordinator that takes over waits for the job's workers,
SERVER = "server.sock"  # and for the process that they were forked from


def listen(folder: JobFolder, name: str = CONTROL, kind: int = socket.SOCK_STREAM) -> socket.socket:
    """A socket in the job's folder, which only its owner can reach."""
    path = folder.path / name
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, kind)
    with _within(folder, name) as address:
        listening.bind(address)
    os.chmod(path, 0o600)
    listening.listen()
    listening.setblocking(False)
    return listening


def connect(folder: JobFolder, name: str, kind: int = socket.SOCK_STREAM) -> socket.socket:
    """A connection to who listens there. Raises OSError if nobody does."""
    connection = socket.socket(socket.AF_UNIX, kind)
    try:
        with _within(folder, name) as address:
            connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


def pid_of_peer(connection: socket.socket) -> int:
    """The process at the other end, as the kernel knows it."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", credentials)[0]
    return pid


def ask(folder: JobFolder, request: JobRequest, seconds: float = ANSWER_SECONDS) -> JobStatus:
    """The job's status after *request*. Raises UnreachableError if no answer comes in time."""
    job_id = folder.path.name
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(seconds)
            with _within(folder, CONTROL) as address:
                connection.connect(address)
            connection.sendall(encoded(request) + b"\n")
            with closing(connection.makefile("rb")) as answers:
                line = answers.readline()
    except OSError as error:
        why = error.strerror or error
        raise UnreachableError(f"job {job_id} can't be reached ({why}){_state_of(folder)}") from error
    if not line:
        raise UnreachableError(f"job {job_id} ended before it could answer")
    try:
        answer = decoded(ANSWERS, line)
    except MessageError as error:
        raise UnreachableError(f"job {job_id} gave no answer that makes sense: {line[:80]!r}") from error
    if isinstance(answer, Refusal):
        raise LaunchError(answer.error)
    return answer.status


def _state_of(folder: JobFolder) -> str:
    try:
        return f": its state is {folder.read_state().state}"
    except OSError:
        return ""


def answers(folder: JobFolder) -> bool:
    """Whether a coordinator runs the job."""
    try:
        ask(folder, GetStatus())
    except LaunchError:
        return False
    return True


@contextmanager
def _within(folder: JobFolder, name: str) -> Iterator[str]:
    """The socket's name by way of its folder's descriptor: an address holds 108 bytes, and a path may be longer."""
    descriptor = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)
