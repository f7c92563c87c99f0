"""The workers of one job: their processes, the lines to them, and what they write."""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from virtualflow.job.backend import Backend, Exit, Place
from virtualflow.job.spec import Failure, WorkerSpec
from virtualflow.job.wire import Wire

LAST_WORDS = 4096  # bytes
MOST_ROUNDS = 16  # in which everyone is heard, before exits are looked at

_log = logging.getLogger("virtualflow")


@dataclass(slots=True)
class Worker:
    """A worker's process, and the coordinator's line to it."""

    device: str
    process: int  # the backend's number for it; for one started elsewhere, its id there
    wire: Wire
    ends: list[int]
    leaving: bool = False
    failure: Failure | None = None
    last_words: bytes = b""  # the end of what it wrote to stderr
    guest_of: str = ""  # the host of a worker that was started elsewhere: its line is all there is of it
    heard_at: float = field(default_factory=time.monotonic)


class Owner(Protocol):
    """Hears of a crew. Of a worker whose device has another by now, only the output is told."""

    def heard(self, worker: Worker, message: dict[str, Any]) -> None:
        """A worker has told something."""

    def wrote(self, worker: Worker, stream: str, data: bytes) -> None:
        """A worker has written to its stdout or stderr."""

    def ended(self, worker: Worker, code: int) -> None:
        """A worker has ended with this exit code, or by the signal of this negative number; its last words are told."""

    def left_behind(self, worker: Worker, commands: Sequence[str]) -> None:
        """A worker that has ended had left processes behind; they were ended, too."""


class Crew:
    """The workers of one job by device: those that *backend* has started, and guests from elsewhere.

    Everything happens in ``pump``, which also calls what others have registered with the ``selector``: functions that
    take in what has come, and may return whether there was something. None of them may block, or raise.
    """

    def __init__(self, backend: Backend, owner: Owner) -> None:
        self.selector = selectors.DefaultSelector()
        self.selector.register(backend.fileno(), selectors.EVENT_READ, lambda: False)  # pump looks for exits itself
        self.workers: dict[str, Worker] = {}
        self._backend = backend
        self._owner = owner
        self._retired: dict[int, Worker] = {}  # by process: those whose device has another worker by now
        self._guests = 0
        self._beat_at = 0.0

    @property
    def is_gone(self) -> bool:
        return not self.workers and not self._retired

    def start(self, spec: WorkerSpec) -> Worker:
        with ExitStack() as ends, ExitStack() as theirs:
            ours, control = socket.socketpair()
            ends.callback(ours.close)
            theirs.callback(control.close)
            ours.setblocking(False)
            readers, writers = [], []
            for _ in ("stdout", "stderr"):
                reader, writer = os.pipe()
                ends.callback(os.close, reader)
                theirs.callback(os.close, writer)
                os.set_blocking(reader, False)  # what the script leaves behind may hold the other end for ever
                readers.append(reader)
                writers.append(writer)
            process = self._backend.start(spec, writers[0], writers[1], control.fileno())
            ends.pop_all()
        worker = Worker(spec.device, process, Wire(ours), readers)
        if worker.device in self.workers:
            self._retired[self.workers[worker.device].process] = self.workers[worker.device]
        for reader, stream in zip(readers, ("stdout", "stderr"), strict=True):
            self.selector.register(reader, selectors.EVENT_READ, partial(self._read_output, worker, stream, reader))
        self._attend(worker)
        return worker

    def admit(self, wire: Wire, host: str, pid: int) -> Worker:
        """Take in a worker that another launcher has started, under a new device's name."""
        self._guests += 1
        worker = Worker(f"{host}/{self._guests}", pid, wire, [], guest_of=host)
        self._attend(worker)
        return worker

    def tell(self, **message: Any) -> None:
        """Send a message to all."""
        for worker in self.workers.values():
            worker.wire.send(**message)

    def beat(self, seconds: float) -> None:
        """Show all workers that this process is there, if the last time was so long ago; send what is waiting."""
        if is_due := time.monotonic() - self._beat_at > seconds:
            self._beat_at = time.monotonic()
        for worker in self.workers.values():
            if is_due:
                worker.wire.beat()
            else:
                worker.wire.flush()

    def release(self, device: str) -> None:
        """Let a worker go: it takes no further part, and ends by itself."""
        if device in self.workers:
            self.workers[device].leaving = True
            self.workers[device].wire.send(release=True)

    def kill(self, device: str) -> None:
        if device in self.workers:
            self._signal(self.workers[device], signal.SIGKILL, -signal.SIGKILL)

    def signal_all(self, number: int) -> None:
        """Send a signal to each worker that still runs; guests are let go."""
        for worker in (*self.workers.values(), *self._retired.values()):
            self._signal(worker, number, 0)

    def place_of(self, worker: Worker) -> Place:
        return Place(worker.guest_of, worker.process) if worker.guest_of else self._backend.place_of(worker.process)

    def pump(self, timeout_seconds: float) -> None:
        """Take what has come: output first, so that a worker's last words precede its end.

        From everyone in turn, and not for ever: who never stops talking keeps nobody from being heard.
        """
        ready = [key for key, _ in self.selector.select(timeout_seconds)]
        for _ in range(MOST_ROUNDS):
            said = [key.data() for key in ready if key.fileobj in self.selector.get_map()]
            if not any(said):
                break
            ready = [key for key, _ in self.selector.select(0)]
        for end in self._backend.exits(0.0):
            self._note_exit(end)

    def _attend(self, worker: Worker) -> None:
        self.workers[worker.device] = worker
        self.selector.register(worker.wire, selectors.EVENT_READ, partial(self._read_line, worker))

    def _signal(self, worker: Worker, number: int, guest_code: int) -> None:
        if worker.guest_of:
            self._note_end(worker, guest_code)  # it hears that its line is cut, and ends
        else:
            self._backend.kill(worker.process, number)

    def _read_line(self, worker: Worker) -> bool:
        messages = worker.wire.receive()
        if messages is None:
            self.selector.unregister(worker.wire)
            if worker.guest_of:
                self._note_end(worker, 0 if worker.leaving else -signal.SIGKILL)
            return False
        worker.heard_at = time.monotonic()
        for message in messages:
            if self.workers.get(worker.device) is worker:
                self._heed(worker, message)
        return bool(messages)

    def _heed(self, worker: Worker, message: dict[str, Any]) -> None:
        try:
            self._owner.heard(worker, message)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            # No message of ours: whatever one worker says, the others go on.
            _log.warning("device %s said what can't be understood (%r), and is ended", worker.device, error)
            self._signal(worker, signal.SIGKILL, -signal.SIGKILL)

    def _read_output(self, worker: Worker, stream: str, reader: int) -> bool:
        try:
            data = os.read(reader, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            self.selector.unregister(reader)
            return False
        if stream == "stderr":
            worker.last_words = (worker.last_words + data)[-LAST_WORDS:]
        self._owner.wrote(worker, stream, data)
        return True

    def let_go(self) -> None:
        """Close all lines, as if this process had died: each worker leaves a checkpoint, and ends."""
        for worker in (*self.workers.values(), *self._retired.values()):
            worker.wire.cut()

    def end_silent(self, devices: Iterable[str], seconds: float) -> None:
        """End those of *devices* whose worker has not shown for so long that it is there."""
        now = time.monotonic()
        for device in list(devices):
            worker = self.workers.get(device)
            if worker is not None and now - worker.heard_at > seconds:
                _log.warning("device %s has not been heard of for %.0f s, and is ended", device, seconds)
                self.kill(device)

    @property
    def guests(self) -> list[str]:
        """The devices of workers that were started elsewhere."""
        return [worker.device for worker in self.workers.values() if worker.guest_of]

    def _note_exit(self, end: Exit) -> None:
        process, code = end.process, end.code
        known = (w for w in self.workers.values() if w.process == process and not w.guest_of)
        worker = next(known, None) or self._retired.pop(process, None)
        if worker is not None:
            if end.left:
                self._owner.left_behind(worker, end.left)
            while worker.wire in self.selector.get_map() and self._read_line(worker):
                pass  # its last words count, even those that came with its end
            self._note_end(worker, code)

    def _note_end(self, worker: Worker, code: int) -> None:
        for reader in worker.ends:
            while reader in self.selector.get_map() and self.selector.get_key(reader).data():
                pass
            if reader in self.selector.get_map():  # what the script left behind still holds the other end
                self.selector.unregister(reader)
            os.close(reader)
        if worker.wire in self.selector.get_map():
            self.selector.unregister(worker.wire)
        worker.wire.close()
        if self.workers.get(worker.device) is worker:
            del self.workers[worker.device]
            self._owner.ended(worker, code)
