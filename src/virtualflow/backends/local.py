"""Workers as processes of this machine, forked from a server that has torch loaded."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar

from virtualflow.backends.fork_messages import (
    FROM_SERVER,
    ForkRequest,
    FromServer,
    ServerReady,
    WorkerEnded,
    WorkerForked,
)
from virtualflow.core import device_choice
from virtualflow.core.devices import CPU
from virtualflow.errors import LaunchError, NotReadyError, ServerLostError, ServerSilentError
from virtualflow.job.backend import Exit, Place
from virtualflow.job.json_lines import decoded, encoded
from virtualflow.job.spec import WorkerSpec
from virtualflow.system import hash_seed
from virtualflow.system.hash_seed import hash_seed_of
from virtualflow.system.processes import MARKER, Stranger, adopt_orphans, end_children

LOOPBACK = "127.0.0.1"
START_SECONDS = 120.0  # importing torch from a cold disk on a busy machine
FORK_SECONDS = 10.0  # at most, for a server that is there to fork a worker: then another one takes its place
_log = logging.getLogger("virtualflow")
Awaited = TypeVar("Awaited", ServerReady, WorkerForked)


class LocalBackend:
    """Owns a fork server and everything forked from it; leaving the ``with`` block ends them all."""

    address = LOOPBACK

    def __init__(
        self,
        *,
        threads_per_device: int = 1,
        hash_seed: str | None = None,
        inherited: Sequence[int] = (),
        outlives_us: bool = False,
        environment: Mapping[str, str] | None = None,
        device_type: str = CPU,
        emulated: Collection[str] = (),
        preload: Sequence[str] = (),
    ) -> None:
        """The workers, too, hold the descriptors in *inherited*, and have the variables in *environment*.

        What *preload* names is imported before they start, if that is safe. Their *device_type* decides what ``check``
        asks for; those that are *emulated* are cores.
        """
        self._device_type = device_type
        self._emulated = emulated
        self._accelerators: tuple[device_choice.Accelerator, ...] = ()
        self._threads = threads_per_device
        self._hash_seed = hash_seed or hash_seed_of(os.environ)
        self._inherited = inherited
        self._preload = preload
        self._outlives_us = outlives_us
        self._environment = environment or {}
        self._exits: list[Exit] = []
        self._alive: set[int] = set()
        self._is_ready = False  # the server, to fork workers
        self._is_lost = False  # the server; no other one has been started yet
        self._adopted: dict[int, int] = {}  # workers whose server was killed: process ids by their descriptors
        self._may_have_leftovers = False  # of workers that have ended without a server to see to it
        self._marker = f"{MARKER}={os.getpid()}-{id(self)}"  # in the environment of all that workers start

    def __enter__(self) -> Self:
        self._server: subprocess.Popen[bytes] | Stranger
        self._poll = select.epoll()  # of the server's connection, and of workers that have outlived their server
        if not self._outlives_us:
            adopt_orphans()  # the workers, if their server is killed: the job goes on
        self._begin()
        return self

    def _begin(self) -> None:
        self._start_server()
        try:
            self._note(self._first_ready())
        except BaseException:  # such as Ctrl-C: nothing else would end the server
            self.__exit__(None, None, None)
            raise

    def _first_ready(self) -> ServerReady:
        """Wait for the server; one that is killed meanwhile is replaced, one that fails by itself is not."""
        while True:
            try:
                return self._wait_for(ServerReady, START_SECONDS)
            except ServerLostError:
                if self._outlives_us or self._server.wait() >= 0:
                    raise
                self._drop_server()
                self._replace_server()

    @property
    def server_pid(self) -> int:
        """The process that workers are forked from, as of now."""
        return self._server.pid

    def _start_server(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {
            **os.environ,
            **self._environment,
            "MKL_CBWR": "AUTO,STRICT",
            "OMP_NUM_THREADS": str(self._threads),
            hash_seed.VARIABLE: self._hash_seed,
            "TORCH_CPP_LOG_LEVEL": "ERROR",  # a lost peer is no news for the script's output
            **dict([self._marker.split("=")]),
        }
        command = [sys.executable, "-m", "virtualflow.backends.forkserver", str(theirs.fileno()), *self._preload]
        if self._outlives_us:  # not a child, or it would be ended with this process: it waits for a checkpoint
            command = ["/bin/sh", "-c", '"$@" &', "sh", *command]
        with theirs, contextlib.ExitStack() as unless_started:
            unless_started.callback(ours.close)
            self._server = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno(), *self._inherited],
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            unless_started.pop_all()
        self._connect(ours)

    def _connect(self, connection: socket.socket) -> None:
        self._connection = connection
        self._poll.register(self._connection, select.EPOLLIN)

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pid in list(self._alive):
            self.kill(pid, signal.SIGKILL)
        self._server.kill()
        self._server.wait()
        for pidfd in self._adopted:
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
            os.close(pidfd)
        self._end_orphans(spared=set())  # what workers have left, if the server could not see to it
        self._connection.close()
        self._poll.close()

    def check(self, devices: Sequence[str]) -> None:
        """A core runs any number of workers, an accelerator one."""
        real = [device for device in devices if device not in self._emulated]
        device_choice.check(real, self._device_type, self._accelerators)

    @property
    def accelerators(self) -> tuple[device_choice.Accelerator, ...]:
        """Those of this machine that workers see."""
        return self._accelerators

    def start(
        self, spec: WorkerSpec, stdout: int, stderr: int, control: int, environment: Mapping[str, str] | None = None
    ) -> int:
        return self._fork(ForkRequest(spec, dict(environment or {})), [stdout, stderr, control])

    def exits(self, timeout_seconds: float = 0.0) -> list[Exit]:
        for descriptor, _ in self._poll.poll(timeout_seconds):
            if descriptor in self._adopted:
                self._note_end_of_adopted(descriptor)
            elif descriptor == self._connection.fileno():
                self._read_all()
        if self._is_lost:
            with contextlib.suppress(OSError):  # out of descriptors or processes: it is tried again
                self._replace_server()
        if self._may_have_leftovers:
            with contextlib.suppress(OSError):  # no descriptor to look for them with: likewise
                self._end_leftovers()
        ended, self._exits = self._exits, []
        return ended

    def kill(self, process: int, signal_number: int) -> None:
        if process in self._alive:
            try:
                os.killpg(process, signal_number)
            except ProcessLookupError:  # it was forked just now, and has no group of its own yet
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal_number)

    def place_of(self, process: int) -> Place:
        return Place(LOOPBACK, process)

    def fileno(self) -> int:
        return self._poll.fileno()

    def _fork(self, request: ForkRequest, descriptors: list[int]) -> int:
        if not self._is_lost:
            self._read_all()
        if not self._is_ready:
            raise NotReadyError("the process that workers are forked from was killed, and another one is starting")
        try:
            socket.send_fds(self._connection, [encoded(request)], descriptors)
            pid = self._wait_for(WorkerForked, min(FORK_SECONDS, request.worker.patience_seconds)).pid
        except (ServerLostError, ServerSilentError, BrokenPipeError, ConnectionResetError) as error:
            if isinstance(error, ServerSilentError):
                self._server.kill()
            self._drop_server()
            raise NotReadyError("the process that workers are forked from was killed") from None
        self._alive.add(pid)
        return pid

    def _wait_for(self, wanted: type[Awaited], seconds: float) -> Awaited:
        """Wait for a message of this type."""
        self._connection.settimeout(seconds)
        while True:
            try:
                message = self._read()
            except TimeoutError:
                raise ServerSilentError(f"the fork server did not answer within {seconds:.0f} s") from None
            if isinstance(message, wanted):
                return message
            self._note(message)

    def _read_all(self) -> None:
        self._connection.setblocking(False)
        try:
            while True:
                self._note(self._read())
        except BlockingIOError:
            return
        except ServerLostError:
            self._drop_server()

    def _read(self) -> FromServer:
        try:
            packet = self._connection.recv(1 << 16)
        except ConnectionResetError:  # it had not read everything yet
            packet = b""
        if not packet:
            raise ServerLostError(
                f"the process that workers are forked from ended (exit code {self._server.poll()}). Its own error is "
                "above; `vf doctor` says what is missing on this machine."
            )
        return decoded(FROM_SERVER, packet)

    def _note(self, message: FromServer) -> None:
        if isinstance(message, ServerReady):
            self._is_ready = True
            self._accelerators = message.accelerators
        if isinstance(message, WorkerEnded):
            self._alive.discard(message.pid)
            self._exits.append(Exit(message.pid, message.code, message.left))

    def _drop_server(self) -> None:
        """The server was killed."""
        if self._outlives_us:
            raise LaunchError("the process that workers are forked from was killed")
        self._server.wait()  # it has ended, or is about to
        self._poll.unregister(self._connection)
        self._connection.close()
        self._is_ready, self._is_lost = False, True

    def _replace_server(self) -> None:
        """The workers of the killed server are ours now, and others will be forked from a new one.

        Raises OSError if this process has no free descriptor; a later call continues.
        """
        for pid in self._alive - set(self._adopted.values()):
            self._watch(pid)
        self._may_have_leftovers = True  # it may have been killed before it had ended them
        self._start_server()
        self._is_lost = False

    def _watch(self, pid: int) -> None:
        """See to a worker that has no server."""
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:  # it ended, and its server knew
            self._alive.discard(pid)
            self._exits.append(Exit(pid, -signal.SIGKILL))
            return
        self._adopted[pidfd] = pid
        self._poll.register(pidfd, select.EPOLLIN)

    def _note_end_of_adopted(self, pidfd: int) -> None:
        pid = self._adopted.pop(pidfd)
        ended = None
        with contextlib.suppress(ChildProcessError):  # another process was its parent
            ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # whatever it has started in its group
        self._alive.discard(pid)
        self._may_have_leftovers = True
        self._exits.append(Exit(pid, -signal.SIGKILL if ended is None else _exit_code(ended)))

    def _end_leftovers(self) -> None:
        """End what workers that are gone have started, and report it with the end of one of them."""
        left = self._end_orphans({*self._alive, self._server.pid})
        self._may_have_leftovers = False
        if left and self._exits:
            self._exits[0] = replace(self._exits[0], left=(*self._exits[0].left, *left))
        elif left:
            _log.warning("processes that a worker left behind were ended: %s", "; ".join(left))

    def _end_orphans(self, spared: set[int]) -> tuple[str, ...]:
        """End what the job's workers have started, and that is not of one of *spared*; return the commands."""
        return tuple(child.command for child in end_children(spared, self._marker))


def _exit_code(ended: os.waitid_result) -> int:
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
