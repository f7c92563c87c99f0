"""The processes of a job whose coordinator has died, in the hands of the one that takes over."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from virtualflow.backends.fork_messages import FROM_SERVER, ServerReady, WorkerEnded
from virtualflow.backends.local import LocalBackend
from virtualflow.errors import MessageError
from virtualflow.job import control, lock_holders
from virtualflow.job.backend import Exit
from virtualflow.job.folder import JobFolder
from virtualflow.job.found_job import FoundJob, FoundWorker
from virtualflow.job.json_lines import decoded
from virtualflow.job.wire_messages import WORKER_REPORTS, WorkerReport
from virtualflow.system.processes import MARKER, Stranger, end_marked

SERVER_SECONDS = 10.0  # for a fork server that is there to say so; then another one takes its place
REPORT_SECONDS = 5.0  # for a worker that has connected to say who it is
LOOK_SECONDS = 0.01
MAX_REPORT_BYTES = 1 << 22

_log = logging.getLogger("virtualflow")


@dataclass(slots=True)
class LeftProcesses:
    """What is left of a job on this machine: it is found by its own looking for the coordinator that takes over."""

    folder: JobFolder
    reported: dict[int, FoundWorker] = field(default_factory=dict)  # by process id
    server: socket.socket | None = None  # the connection to the fork server
    ready: ServerReady | None = None  # what that says of itself
    ended: dict[int, Exit] = field(default_factory=dict)  # workers that have ended meanwhile

    def find(self, seconds: float) -> FoundJob:
        """Wait until all workers have reported that are there; those that have not within *seconds* are ended."""
        known = {worker.pid for worker in self.folder.read_state().workers if worker.pid}
        began = time.monotonic()
        with ExitStack() as owned:
            workers = self._listen(control.SUCCESSION, socket.SOCK_STREAM, owned)
            servers = self._listen(control.SERVER, socket.SOCK_SEQPACKET, owned)
            while (passed := time.monotonic() - began) < seconds:
                self._take_report(workers)
                self._take_server(servers)
                awaits_server = self.ready is None and bool(self.living_servers()) and passed < SERVER_SECONDS
                if self.reported and not awaits_server and not self.missing(known):
                    break
                time.sleep(LOOK_SECONDS)
        for pid in self.missing(known):
            _log.warning("worker %d has not said within %.0f s that it is there, and is ended", pid, seconds)
            lock_holders.send(pid, self.folder.lock, signal.SIGKILL)
        if self.ready is None:
            for pid in self.living_servers():
                _log.warning("the process that workers are forked from does not answer, and is ended")
                lock_holders.send(pid, self.folder.lock, signal.SIGKILL)
        return FoundJob(self._one_for_each_device())

    def missing(self, known: Iterable[int]) -> set[int]:
        """Workers that are there and have not reported."""
        forked = set(self.ready.workers) if self.ready is not None else set()
        others = {pid for pid in known if lock_holders.is_held_by(pid, self.folder.lock)}
        return (forked | others) - self.reported.keys() - self.ended.keys()

    def living_servers(self) -> set[int]:
        """Processes from which those who have reported were forked."""
        servers = {found.report.server for found in self.reported.values()}
        return {pid for pid in servers if lock_holders.is_held_by(pid, self.folder.lock)}

    def _listen(self, name: str, kind: int, owned: ExitStack) -> socket.socket:
        listening = owned.enter_context(control.listen(self.folder, name, kind))
        owned.callback((self.folder.path / name).unlink, missing_ok=True)
        return listening

    def _take_report(self, listening: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            connection, _ = listening.accept()
            connection.settimeout(REPORT_SECONDS)
            pid = control.pid_of_peer(connection)
            try:
                if not lock_holders.is_held_by(pid, self.folder.lock):
                    raise MessageError("it does not belong to the job")
                report = _report_from(connection)
            except (OSError, MessageError) as error:
                _log.warning("process %d has connected, and is no worker: %s", pid, error)
                connection.close()
                return
            connection.setblocking(False)
            self.reported[pid] = FoundWorker(report, pid, connection)

    def _take_server(self, listening: socket.socket) -> None:
        if self.server is None:
            with contextlib.suppress(BlockingIOError):
                self.server, _ = listening.accept()
                self.server.setblocking(False)
            return
        try:
            packet = self.server.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:  # it was killed, too
            self.server.close()
            self.server = self.ready = None
            return
        message = decoded(FROM_SERVER, packet)
        if isinstance(message, ServerReady):
            self.ready = message
        elif isinstance(message, WorkerEnded):
            self.ended[message.pid] = Exit(message.pid, message.code, message.left)

    def _one_for_each_device(self) -> tuple[FoundWorker, ...]:
        """A device that was about to get another worker may have two."""
        chosen: dict[str, FoundWorker] = {}
        for found in sorted(self.reported.values(), key=lambda found: found.report.standing.holds_state):
            if (other := chosen.get(found.report.device)) is not None:
                lock_holders.send(other.pid, self.folder.lock, signal.SIGKILL)
            chosen[found.report.device] = found
        return tuple(chosen.values())


def _report_from(connection: socket.socket) -> WorkerReport:
    """The first line that has come: what follows belongs to the worker's line."""
    line = bytearray()
    while not line.endswith(b"\n"):
        seen = connection.recv(1 << 16, socket.MSG_PEEK)
        if not seen or len(line) > MAX_REPORT_BYTES:
            raise MessageError("it has not said who it is")
        line += connection.recv(seen.find(b"\n") + 1 or len(seen))
    return decoded(WORKER_REPORTS, bytes(line))


class TakenOverBackend(LocalBackend):
    """Owns what is left of a job: a fork server and workers, none of which is a child of this process."""

    def __init__(self, left: LeftProcesses, marker: str, **options: Any) -> None:
        """*marker* is in the environment of all that the job's workers have started."""
        super().__init__(**options)
        self._left = left
        self._marker = f"{MARKER}={marker}"

    def _begin(self) -> None:
        left = self._left
        if left.server is not None and left.ready is not None:
            self._server = Stranger(left.ready.pid)
            self._connect(left.server)
            self._note(left.ready)
        else:
            self._start_server()  # those who join wait for it
        self._exits += left.ended.values()
        forked = set(left.ready.workers) if left.ready is not None else set()
        self._alive |= (forked | left.reported.keys()) - left.ended.keys()
        for pid in self._alive - forked:
            self._watch(pid)

    def _end_orphans(self, spared: set[int]) -> tuple[str, ...]:
        return tuple(end_marked(self._marker, spared))
