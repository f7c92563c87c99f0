"""Where a coordinator hears from outside its job: from ``vf`` verbs, and from workers that other launchers started."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from virtualflow.errors import LaunchError, VirtualFlowError
from virtualflow.runtime import control, door
from virtualflow.runtime.door import Guest
from virtualflow.runtime.folder import JobFolder
from virtualflow.runtime.wire import Wire

Obey = Callable[[dict[str, Any]], dict[str, Any]]
Admit = Callable[[Wire, str, int], None]


class Reception:
    """Answers verbs with *obey*; hands workers that show the token to *admit*, with their host and process id.

    Each registration in *selector* carries what to call when there is something to read; it returns whether there was.
    """

    def __init__(self, selector: selectors.BaseSelector, obey: Obey, admit: Admit) -> None:
        self._selector = selector
        self._obey = obey
        self._admit = admit

    def open(self, folder: JobFolder, owned: ExitStack) -> None:
        """Listen for verbs, in the job's folder."""
        listening = owned.enter_context(control.listen(folder))
        owned.callback(folder.control.unlink, missing_ok=True)

        def accept() -> bool:
            connection, _ = listening.accept()
            connection.setblocking(False)
            wire = Wire(connection)
            self._selector.register(wire, selectors.EVENT_READ, lambda: self._answer(wire))
            return True

        self._selector.register(listening, selectors.EVENT_READ, accept)

    def open_door(self, host: str, port: int, token_file: Path, owned: ExitStack) -> None:
        """Listen for workers from other launchers."""
        token = door.read_token(token_file, create=True)
        listening = owned.enter_context(listen(host, port))

        def accept() -> bool:
            connection, _ = listening.accept()
            guest = Guest(connection, token)
            self._selector.register(guest, selectors.EVENT_READ, lambda: self._receive(guest))
            return True

        self._selector.register(listening, selectors.EVENT_READ, accept)

    def _answer(self, wire: Wire) -> bool:
        messages = wire.receive()
        for message in messages or ():
            try:
                wire.send(**self._obey(message))
            except VirtualFlowError as error:
                wire.send(error=str(error))
        if messages is None:
            self._selector.unregister(wire)
            wire.close()
        return bool(messages)

    def _receive(self, guest: Guest) -> bool:
        """Let a worker in that shows the token, and nobody else."""
        messages = guest.wire.receive()
        if messages == []:
            return False
        self._selector.unregister(guest)
        if not messages or not guest.admitted(messages[0]):
            guest.wire.close()
            return False
        try:
            self._admit(guest.wire, guest.host, int(messages[0].get("pid", 0)))
        except VirtualFlowError as error:
            guest.wire.send(error=str(error))
            guest.wire.close()
            return False
        return True


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
