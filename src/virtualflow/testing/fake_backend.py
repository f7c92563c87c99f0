"""A backend without processes: its workers are the other ends of their lines, in the test's hands."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from typing import Self

from virtualflow.errors import NotReadyError
from virtualflow.job.backend import Exit, Place
from virtualflow.job.spec import WorkerSpec
from virtualflow.job.wire import Wire
from virtualflow.job.wire_messages import TO_WORKER, Heartbeat, Message, ToWorker

LOOPBACK = "127.0.0.1"


class FakeWorker:
    """What a worker's process would hold: the ends of its output and of its line."""

    def __init__(self, process: int, spec: WorkerSpec, stdout: int, stderr: int, control: int) -> None:
        self.process = process
        self.spec = spec
        self._outputs = {"stdout": os.dup(stdout), "stderr": os.dup(stderr)}
        self._socket = socket.socket(fileno=os.dup(control))
        self._socket.setblocking(False)
        self.wire = Wire(self._socket, TO_WORKER)

    def send(self, message: Message) -> None:
        self.wire.send(message)

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def write(self, stream: str, data: bytes) -> None:
        os.write(self._outputs[stream], data)

    def received(self) -> list[ToWorker]:
        """What has come over the line since the last call."""
        return [message for message in self.wire.receive() or [] if not isinstance(message, Heartbeat)]

    @property
    def is_closed(self) -> bool:
        return not self._outputs

    def close(self) -> None:
        self._socket.close()
        for descriptor in self._outputs.values():
            os.close(descriptor)
        self._outputs.clear()


class FakeBackend:
    """Fulfils ``job.backend``. A worker ends when the test says so, or when it is killed."""

    address = LOOPBACK

    def __init__(self) -> None:
        self.workers: dict[str, FakeWorker] = {}  # the newest by device
        self.refuses = False
        self._by_process: dict[int, FakeWorker] = {}
        self._exits: list[Exit] = []
        self._reader, self._writer = os.pipe()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._by_process.values():
            worker.close()
        os.close(self._reader)
        os.close(self._writer)

    def check(self, devices: Sequence[str]) -> None: ...

    def start(self, spec: WorkerSpec, stdout: int, stderr: int, control: int) -> int:
        if self.refuses:
            raise NotReadyError("not now")
        process = len(self._by_process) + 1
        self.workers[spec.device] = self._by_process[process] = FakeWorker(process, spec, stdout, stderr, control)
        return process

    def exits(self, timeout_seconds: float = 0.0) -> list[Exit]:
        ended, self._exits = self._exits, []
        return ended

    def kill(self, process: int, signal_number: int) -> None:
        worker = self._by_process[process]
        if signal_number in (signal.SIGINT, signal.SIGKILL) and not worker.is_closed:
            self.end(worker, -signal_number)

    def place_of(self, process: int) -> Place:
        return Place(LOOPBACK, process)

    def fileno(self) -> int:
        return self._reader

    def end(self, worker: FakeWorker, code: int, left: Sequence[str] = (), *, output_is_held: bool = False) -> None:
        """The worker's process ends; what it has started may still hold its output."""
        if not output_is_held:
            worker.close()
        self._exits.append(Exit(worker.process, code, tuple(left)))
