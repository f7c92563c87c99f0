"""Workers as processes of this machine, forked from a server that has torch loaded."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from virtualflow.core import hashseed
from virtualflow.core.hashseed import hash_seed_of
from virtualflow.errors import LaunchError
from virtualflow.runtime.backend import Exit, Place
from virtualflow.runtime.spec import WorkerSpec

LOOPBACK = "127.0.0.1"
START_SECONDS = 120.0  # importing torch from a cold disk on a busy machine


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
    ) -> None:
        """The workers, too, hold the descriptors in *inherited*."""
        self._threads = threads_per_device
        self._hash_seed = hash_seed or hash_seed_of(os.environ)
        self._inherited = inherited
        self._outlives_us = outlives_us
        self._exits: list[Exit] = []
        self._alive: set[int] = set()

    def __enter__(self) -> Self:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = os.environ | {
            "MKL_CBWR": "AUTO,STRICT",
            "OMP_NUM_THREADS": str(self._threads),
            hashseed.VARIABLE: self._hash_seed,
            "TORCH_CPP_LOG_LEVEL": "ERROR",  # a lost peer is no news for the script's output
        }
        command = [sys.executable, "-m", "virtualflow.runtime.forkserver", str(theirs.fileno())]
        if self._outlives_us:  # no child of ours: whoever ends us ends our children, and it has a checkpoint to see to
            command = ["/bin/sh", "-c", '"$@" &', "sh", *command]
        self._server = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno(), *self._inherited],
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        try:
            self._receive(START_SECONDS, "ready")
        except BaseException:  # Ctrl-C, for one: nobody else would end the server
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pid in list(self._alive):
            self.kill(pid, signal.SIGKILL)
        self._server.kill()
        self._server.wait()
        self._connection.close()

    def check(self, devices: Sequence[str]) -> None:
        """A core runs any number of workers; a worker itself knows whether its accelerator exists."""

    def host_store(self, listening: socket.socket) -> int:
        return self._fork({"store": listening.getsockname()[1]}, [listening.fileno()])

    def start(
        self, spec: WorkerSpec, stdout: int, stderr: int, control: int, environment: Mapping[str, str] | None = None
    ) -> int:
        request = {"worker": spec.to_json(), "environment": dict(environment or {})}
        return self._fork(request, [stdout, stderr, control])

    def exits(self, timeout_seconds: float = 0.0) -> list[Exit]:
        while not self._exits or timeout_seconds == 0.0:
            self._connection.settimeout(timeout_seconds)
            try:
                self._note_exit(self._read())
            except (TimeoutError, BlockingIOError):
                break
        ended, self._exits = self._exits, []
        return ended

    def kill(self, process: int, signal_number: int) -> None:
        if process in self._alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal_number)

    def place_of(self, process: int) -> Place:
        return Place(LOOPBACK, process)

    def fileno(self) -> int:
        return self._connection.fileno()

    def _fork(self, request: dict[str, Any], descriptors: list[int]) -> int:
        socket.send_fds(self._connection, [json.dumps(request).encode()], descriptors)
        pid = int(self._receive(START_SECONDS, "started")["started"])
        self._alive.add(pid)
        return pid

    def _receive(self, timeout_seconds: float, kind: str) -> dict[str, Any]:
        self._connection.settimeout(timeout_seconds)
        while True:
            try:
                message = self._read()
            except TimeoutError:
                raise LaunchError(f"the fork server did not answer within {timeout_seconds:.0f} s") from None
            if kind in message:
                return message
            self._note_exit(message)

    def _read(self) -> dict[str, Any]:
        packet = self._connection.recv(1 << 16)
        if not packet:
            raise LaunchError(
                f"the process that workers are forked from ended (exit code {self._server.poll()}). Its own error is "
                "above; `vf doctor` says what is missing on this machine."
            )
        message: dict[str, Any] = json.loads(packet)
        return message

    def _note_exit(self, message: dict[str, Any]) -> None:
        self._alive.discard(message["exited"])
        self._exits.append(Exit(message["exited"], message["code"]))
