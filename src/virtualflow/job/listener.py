"""Where a coordinator listens: for ``vf`` verbs, and for workers that other launchers have started.

Any process may connect. So the number of connections that have not shown a token is limited, and so is their time; an
error on one of them ends that one alone.
"""

from __future__ import annotations

import logging
import math
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Protocol

from virtualflow.errors import LaunchError, MessageError, VirtualFlowError
from virtualflow.job import control, tokens
from virtualflow.job.folder import JobFolder
from virtualflow.job.status import JobStatus
from virtualflow.job.tokens import JoinRequest
from virtualflow.job.wire import Wire
from virtualflow.job.wire_messages import REQUESTS, FromWorker, Heartbeat, JobRequest, Refusal, StatusReport, TokenProof
from virtualflow.system import tls
from virtualflow.system.identity import Identity

OnRequest = Callable[[JobRequest], JobStatus]
OnWorker = Callable[[Wire[FromWorker], str, int], None]
MAX_WAITING = 64  # connections that have not sent anything useful yet; then the one that has waited longest is closed
WAIT_SECONDS = 10.0
PAUSE_SECONDS = 1.0  # between two tries to accept a connection when the process has no descriptor left
MAX_REQUEST_BYTES = 1 << 20
LOG_SECONDS = 60.0  # between two messages about connections that went wrong: anybody can make any number of them

_log = logging.getLogger("virtualflow")


class _Connection(Protocol):
    def fileno(self) -> int: ...
    def close(self) -> None: ...


class Listener:
    """Answers verbs with *on_request*; hands workers that show the token to *on_worker*, with host and process id.

    Each registration in *selector* carries what to call when there is something to read.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        on_request: OnRequest,
        on_worker: OnWorker,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._selector = selector
        self._on_request = on_request
        self._on_worker = on_worker
        self._clock = clock
        self._waiting: dict[_Connection, float] = {}  # with the time by which each must have been of use
        self._paused: dict[socket.socket, tuple[float, Callable[[], None]]] = {}
        self._silent_until, self._unlogged = -math.inf, 0

    def listen_for_verbs(self, folder: JobFolder, owned: ExitStack) -> None:
        """On a socket in the job's folder."""
        listening = owned.enter_context(control.listen(folder))
        owned.callback(_remove, folder.control)

        def on_connection(connection: socket.socket, _: str) -> None:
            connection.setblocking(False)
            wire = Wire(connection, REQUESTS, MAX_REQUEST_BYTES)
            self._wait_for(wire, lambda: self._answer(wire))

        self._listen(listening, on_connection, owned)

    def listen_for_workers(self, host: str, port: int, token_file: Path, own: Identity, owned: ExitStack) -> None:
        """On a port, for workers from other launchers, who know the job by the certificate of *own*."""
        token = tokens.made_token(token_file, own)
        context = tls.server_context(own)
        listening = owned.enter_context(listen(host, port))
        listening.setblocking(False)

        def on_connection(connection: socket.socket, host: str) -> None:
            request = JoinRequest(tls.serve(connection, context), host, token)
            self._wait_for(request, lambda: self._admit(request))

        self._listen(listening, on_connection, owned)

    @property
    def waiting(self) -> int:
        """How many connections have not shown yet that they are of use."""
        return len(self._waiting)

    def tick(self) -> None:
        """Time has passed: close connections that have sent nothing, and listen again where that was not possible."""
        now = self._clock()
        for connection in [late for late, deadline in self._waiting.items() if now > deadline]:
            self._close(connection)
        for listening, (until, accept) in list(self._paused.items()):
            if now > until:
                del self._paused[listening]
                self._selector.register(listening, selectors.EVENT_READ, accept)

    def _listen(
        self, listening: socket.socket, on_connection: Callable[[socket.socket, str], None], owned: ExitStack
    ) -> None:
        def accept() -> None:
            try:
                connection, address = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return  # gone before it was accepted
            except OSError as error:  # no descriptor is left: others may be given back
                self._log_rarely(f"cannot accept connections now: {error.strerror}")
                self._selector.unregister(listening)
                self._paused[listening] = self._clock() + PAUSE_SECONDS, accept
                return
            try:
                on_connection(connection, address[0] if address else "")
            except Exception as error:
                connection.close()
                self._log_rarely(f"a connection was refused: {error}")

        self._selector.register(listening, selectors.EVENT_READ, accept)
        owned.callback(self._close_all)

    def _wait_for(self, connection: _Connection, read: Callable[[], None]) -> None:
        """Read from a new connection, for a while."""
        if len(self._waiting) >= MAX_WAITING:
            self._close(next(iter(self._waiting)))

        def on_readable() -> None:
            try:
                read()
            except Exception as error:  # no message of a stranger may end the job
                self._log_rarely(f"a connection was ended: {type(error).__name__}: {error}")
                self._close(connection)

        try:
            self._selector.register(connection, selectors.EVENT_READ, on_readable)
        except BaseException:
            connection.close()
            raise
        self._waiting[connection] = self._clock() + WAIT_SECONDS

    def _log_rarely(self, what: str) -> None:
        """Say what happened, now and then: the log is on the owner's disk."""
        if self._clock() < self._silent_until:
            self._unlogged += 1
            return
        _log.warning("%s%s", what, f" ({self._unlogged} more since the last such message)" if self._unlogged else "")
        self._silent_until, self._unlogged = self._clock() + LOG_SECONDS, 0

    def _close(self, connection: _Connection) -> None:
        if self._waiting.pop(connection, None) is not None:
            self._selector.unregister(connection)
            connection.close()

    def _close_all(self) -> None:
        for connection in list(self._waiting):
            self._close(connection)

    def _answer(self, wire: Wire[JobRequest]) -> None:
        try:
            requests = wire.receive()
        except MessageError as error:
            wire.send(Refusal(f"the request can't be understood: {error}"))
            raise
        for request in requests or ():
            if isinstance(request, Heartbeat):
                continue
            try:
                wire.send(StatusReport(self._on_request(request)))
            except VirtualFlowError as error:
                wire.send(Refusal(str(error)))
            except Exception as error:
                wire.send(Refusal(f"the request {request} has failed: {type(error).__name__} {error}"))
                raise
        if requests is None:
            self._close(wire)

    def _admit(self, request: JoinRequest) -> None:
        """Accept a worker that shows the token; refuse all others."""
        messages = request.wire.receive()
        if messages == []:
            return
        proof = messages[0] if messages else None
        wire = request.accept(proof) if isinstance(proof, TokenProof) else None
        if wire is None or not isinstance(proof, TokenProof):
            self._close(request)
            return
        self._waiting.pop(request)
        self._selector.unregister(request)
        try:
            self._on_worker(wire, request.host, proof.pid)
        except VirtualFlowError as error:
            wire.send(Refusal(str(error)))
            wire.close()


def _remove(path: Path) -> None:
    with suppress(OSError):  # something else lies at this path
        path.unlink(missing_ok=True)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on *port*, or on a free one for 0."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise LaunchError(
            f"port {port} cannot be used: {error.strerror}. Another program, perhaps another job, listens there. "
            "Choose another one for --listen."
        ) from error
    listening.listen()
    return listening
