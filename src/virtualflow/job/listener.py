"""Where a coordinator hears from outside its job: from ``vf`` verbs, and from workers that other launchers started.

Anybody may connect. So there are only so many connections at a time that have not shown who they are, each for only so
long, and whatever goes wrong with one of them ends that one alone.
"""

from __future__ import annotations

import logging
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from virtualflow.errors import LaunchError, VirtualFlowError
from virtualflow.job import control, tokens
from virtualflow.job.folder import JobFolder
from virtualflow.job.tokens import Guest
from virtualflow.job.wire import Wire
from virtualflow.system import tls

Obey = Callable[[dict[str, Any]], dict[str, Any]]
Admit = Callable[[Wire, str, int], None]
MOST_WAITING = 64  # connections that have not said anything useful yet; then the one that has waited longest must go
WAIT_SECONDS = 10.0
PAUSE_SECONDS = 1.0  # between two tries to take a connection when the process has no descriptor left
LARGEST_VERB = 1 << 20

_log = logging.getLogger("virtualflow")


class _Connection(Protocol):
    def fileno(self) -> int: ...
    def close(self) -> None: ...


class Reception:
    """Answers verbs with *obey*; hands workers that show the token to *admit*, with their host and process id.

    Each registration in *selector* carries what to call when there is something to read.
    """

    def __init__(self, selector: selectors.BaseSelector, obey: Obey, admit: Admit) -> None:
        self._selector = selector
        self._obey = obey
        self._admit = admit
        self._waiting: dict[_Connection, float] = {}  # each with when it must have been of use
        self._paused: dict[socket.socket, tuple[float, Callable[[], None]]] = {}

    def open(self, folder: JobFolder, owned: ExitStack) -> None:
        """Listen for verbs, in the job's folder."""
        listening = owned.enter_context(control.listen(folder))
        owned.callback(folder.control.unlink, missing_ok=True)

        def welcome(connection: socket.socket, _: str) -> None:
            connection.setblocking(False)
            wire = Wire(connection, LARGEST_VERB)
            self._await(wire, lambda: self._answer(wire))

        self._listen(listening, welcome, owned)

    def open_door(self, host: str, port: int, token_file: Path, owned: ExitStack) -> None:
        """Listen for workers from other launchers."""
        token = tokens.read_token(token_file, create=True)
        context = tls.server_context(tls.identity())
        listening = owned.enter_context(listen(host, port))
        listening.setblocking(False)

        def welcome(connection: socket.socket, host: str) -> None:
            guest = Guest(tls.serve(connection, context), host, token)
            self._await(guest, lambda: self._receive(guest))

        self._listen(listening, welcome, owned)

    def tick(self, now: float) -> None:
        """Time has passed: let go of those who have said nothing, and listen again where that was not possible."""
        for connection in [each for each, deadline in self._waiting.items() if now > deadline]:
            self._forget(connection)
        for listening, (until, accept) in list(self._paused.items()):
            if now > until:
                del self._paused[listening]
                self._selector.register(listening, selectors.EVENT_READ, accept)

    def _listen(
        self, listening: socket.socket, welcome: Callable[[socket.socket, str], None], owned: ExitStack
    ) -> None:
        def accept() -> None:
            try:
                connection, address = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return  # gone before it was taken
            except OSError as error:  # no descriptor is left: others may be given back
                _log.warning("cannot take connections now: %s", error.strerror)
                self._selector.unregister(listening)
                self._paused[listening] = time.monotonic() + PAUSE_SECONDS, accept
                return
            try:
                welcome(connection, address[0] if address else "")
            except Exception as error:
                connection.close()
                _log.warning("a connection was refused: %s", error)

        self._selector.register(listening, selectors.EVENT_READ, accept)
        owned.callback(self._forget_all)

    def _await(self, connection: _Connection, read: Callable[[], None]) -> None:
        """Hear a new connection out, for a while."""
        if len(self._waiting) >= MOST_WAITING:
            self._forget(next(iter(self._waiting)))
        self._waiting[connection] = time.monotonic() + WAIT_SECONDS

        def heard() -> None:
            try:
                read()
            except Exception as error:  # whatever one of them says, the job goes on
                _log.warning("a connection was ended: %s: %s", type(error).__name__, error)
                self._forget(connection)

        self._selector.register(connection, selectors.EVENT_READ, heard)

    def _forget(self, connection: _Connection) -> None:
        if self._waiting.pop(connection, None) is not None:
            self._selector.unregister(connection)
            connection.close()

    def _forget_all(self) -> None:
        for connection in list(self._waiting):
            self._forget(connection)

    def _answer(self, wire: Wire) -> None:
        messages = wire.receive()
        for message in messages or ():
            try:
                wire.send(**self._obey(message))
            except VirtualFlowError as error:
                wire.send(error=str(error))
            except Exception as error:
                wire.send(error=f"the request {str(message)[:200]} can't be understood: {type(error).__name__} {error}")
                raise
        if messages is None:
            self._forget(wire)

    def _receive(self, guest: Guest) -> None:
        """Let a worker in that shows the token, and nobody else."""
        messages = guest.wire.receive()
        if messages == []:
            return
        if not messages or not guest.admitted(messages[0]):
            self._forget(guest)
            return
        process = messages[0].get("pid")
        self._waiting.pop(guest)
        self._selector.unregister(guest)
        try:
            self._admit(guest.wire, guest.host, process if isinstance(process, int) else 0)
        except VirtualFlowError as error:
            guest.wire.send(error=str(error))
            guest.close()


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
