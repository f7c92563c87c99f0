"""The workers of one job: their processes, the lines to them, and their output."""

from __future__ import annotations

import logging
import math
import os
import selectors
import signal
import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from virtualflow.errors import MessageError
from virtualflow.job.backend import Backend, Exit, Place
from virtualflow.job.json_lines import encoded
from virtualflow.job.spec import Failure, WorkerSpec
from virtualflow.job.wire import Wire
from virtualflow.job.wire_messages import FROM_WORKER, FromWorker, Heartbeat, Message, Released

STDERR_TAIL_BYTES = 4096
MAX_ROUNDS = 16  # of reading from everyone, before exits are looked at
MAX_LAST_READS = 16  # of 64 kB: more than that no pipe or line of a worker that has ended can still hold

HELD_UP_SECONDS = 2.0  # between two rounds over all workers; if one took longer, no worker's silence until then counts
_log = logging.getLogger("virtualflow")


@dataclass(slots=True)
class Worker:
    """A worker's process, and the line to it."""

    device: str
    process: int  # the backend's number for it; for one started elsewhere, its id there
    wire: Wire[FromWorker]
    outputs: list[int]  # our ends of its stdout and stderr
    leaving: bool = False
    failure: Failure | None = None
    stderr_tail: bytes = b""
    guest_of: str = ""  # the host of a worker that another launcher has started: its line is all there is of it
    started_at: float = field(default_factory=time.monotonic)
    last_seen: float = field(default_factory=time.monotonic)  # when something came over its line
    cut_at: float | None = None  # when its line ended


class Owner(Protocol):
    """What a crew reports to. Of a worker whose device has another one by now, only the output is reported."""

    def on_message(self, worker: Worker, message: FromWorker) -> None:
        """A worker has sent a message."""

    def on_output(self, worker: Worker, stream: str, data: bytes) -> None:
        """A worker has written to its stdout or stderr."""

    def on_exit(self, worker: Worker, code: int) -> None:
        """A worker has ended with this exit code, or by the signal of this negative number, after its last output."""

    def on_leftovers(self, worker: Worker, commands: Sequence[str]) -> None:
        """A worker that has ended had left processes behind; they were ended, too."""


class Crew:
    """The workers of one job by device: those that *backend* has started, and guests from other launchers.

    Everything happens in ``pump``, which also calls what others have registered with the ``selector``: functions that
    read what has come, and may return whether there was something. None of them may block, or raise.
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
        self._looked_at = -math.inf  # when everybody was last listened to

    @property
    def is_empty(self) -> bool:
        """Whether every worker has ended."""
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
        worker = Worker(spec.device, process, Wire(ours, FROM_WORKER), readers)
        if worker.device in self.workers:
            self._retired[self.workers[worker.device].process] = self.workers[worker.device]
        for reader, stream in zip(readers, ("stdout", "stderr"), strict=True):
            self.selector.register(reader, selectors.EVENT_READ, partial(self._read_output, worker, stream, reader))
        self._add(worker)
        return worker

    def adopt(self, device: str, pid: int, connection: socket.socket, outputs: Sequence[int]) -> None:
        """Add a worker that another coordinator has started, and whose own descriptors of its *outputs* are these."""
        readers: list[int] = []
        worker = Worker(device, pid, Wire(connection, FROM_WORKER), readers)
        for number, stream in zip(outputs, ("stdout", "stderr"), strict=False):
            with suppress(OSError):  # it has ended meanwhile
                reader = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK)
                readers.append(reader)
                self.selector.register(reader, selectors.EVENT_READ, partial(self._read_output, worker, stream, reader))
        self._add(worker)

    def new_guest_name(self, host: str) -> str:
        """A device's name for a worker that another launcher has started on *host*."""
        self._guests += 1
        return f"{host}/{self._guests}"

    def admit(self, device: str, wire: Wire[FromWorker], host: str, pid: int) -> Worker:
        """Add a worker that another launcher has started."""
        worker = Worker(device, pid, wire, [], guest_of=host)
        self._add(worker)
        return worker

    def send(self, devices: Iterable[str], message: Message) -> None:
        """Send a message to those of the workers of *devices* that are there."""
        line = encoded(message)  # once, however many get it
        for device in devices:
            if device in self.workers:
                self.workers[device].wire.send_line(line)

    def beat(self, seconds: float) -> None:
        """Send a heartbeat to all workers, if the last one was so long ago; send what is waiting."""
        if is_due := time.monotonic() - self._beat_at > seconds:
            self._beat_at = time.monotonic()
        for worker in self.workers.values():
            if is_due:
                worker.wire.beat()
            else:
                worker.wire.flush()

    def release(self, device: str) -> None:
        """Let a worker end by itself: it takes no further part."""
        if device in self.workers:
            self.workers[device].leaving = True
            self.send((device,), Released())

    def kill(self, device: str) -> None:
        if device in self.workers:
            self._signal(self.workers[device], signal.SIGKILL, -signal.SIGKILL)

    def signal_all(self, number: int) -> None:
        """Send a signal to each worker that still runs; the lines of guests are closed, and they end."""
        for worker in (*self.workers.values(), *self._retired.values()):
            self._signal(worker, number, 0)

    def place_of(self, worker: Worker) -> Place:
        return Place(worker.guest_of, worker.process) if worker.guest_of else self._backend.place_of(worker.process)

    def pump(self, timeout_seconds: float) -> None:
        """Read what has come: output first, so that a worker's last output precedes its end.

        From all workers in turn, a limited amount: one that never stops writing delays no other.
        """
        ready = [key for key, _ in self.selector.select(timeout_seconds)]
        for _ in range(MAX_ROUNDS):
            had_data = [key.data() for key in ready if key.fileobj in self.selector.get_map()]
            if not any(had_data):
                break
            ready = [key for key, _ in self.selector.select(0)]
        now = time.monotonic()
        if now - self._looked_at > HELD_UP_SECONDS:  # this process stood still, and the machine with it, maybe
            for worker in self.workers.values():
                worker.last_seen = now
        self._looked_at = now
        for end in self._backend.exits(0.0):
            self._note_exit(end)

    def _add(self, worker: Worker) -> None:
        self.workers[worker.device] = worker
        self.selector.register(worker.wire, selectors.EVENT_READ, partial(self._read_line, worker))

    def _signal(self, worker: Worker, number: int, guest_code: int) -> None:
        if worker.guest_of:
            self._note_end(worker, guest_code)  # it notices that its line is cut, and ends
        else:
            self._backend.kill(worker.process, number)

    def _read_line(self, worker: Worker) -> bool:
        try:
            messages = worker.wire.receive()
        except MessageError as error:
            self._end_faulty(worker, error)
            return False
        if messages is None:
            self.selector.unregister(worker.wire)
            worker.cut_at = time.monotonic()
            if worker.guest_of:
                self._note_end(worker, 0 if worker.leaving else -signal.SIGKILL)
            return False
        worker.last_seen = time.monotonic()
        for message in messages:
            if self.workers.get(worker.device) is worker and not isinstance(message, Heartbeat):
                self._pass_on(worker, message)
        return bool(messages)

    def _pass_on(self, worker: Worker, message: FromWorker) -> None:
        try:
            self._owner.on_message(worker, message)
        except Exception as error:
            _log.info("what a message of device %s led to", worker.device, exc_info=True)
            self._end_faulty(worker, error)

    def _end_faulty(self, worker: Worker, error: Exception) -> None:
        """Whatever one worker sends, the others go on."""
        _log.warning("device %s sent what can't be understood (%r), and is ended", worker.device, error)
        if worker.wire in self.selector.get_map():
            self.selector.unregister(worker.wire)
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
            worker.stderr_tail = (worker.stderr_tail + data)[-STDERR_TAIL_BYTES:]
        self._owner.on_output(worker, stream, data)
        return True

    def cut_lines(self) -> None:
        """Close all lines, as if this process had died: each worker leaves a checkpoint, and ends."""
        for worker in (*self.workers.values(), *self._retired.values()):
            worker.wire.cut()

    def end_unreported(self, seconds: float) -> None:
        """End those whose line has ended so long ago that the backend should have reported their end, too."""
        for worker in (*self.workers.values(), *self._retired.values()):
            if worker.cut_at is not None and self._looked_at - worker.cut_at > seconds:
                _log.warning("the worker of device %s is gone, and nothing was reported of its end", worker.device)
                self._signal(worker, signal.SIGKILL, -signal.SIGKILL)
                self._retired.pop(worker.process, None)
                self._note_end(worker, -signal.SIGKILL)

    def kill_silent(self, devices: Iterable[str], seconds: float) -> None:
        """Kill those workers of *devices* that have sent nothing for so long, not even a heartbeat.

        It is not their fault if the loop was held up, as by a fork server that does not answer.
        """
        for device in self._silent(devices, seconds):
            _log.warning("device %s has sent nothing for %.0f s, and is ended", device, seconds)
            self.kill(device)

    def kill_left_behind(self, seconds: float) -> None:
        """Kill workers that have sent nothing for *seconds* while others have.

        The others may wait for them where no time limit holds, as in a kernel of an accelerator. If no worker sends
        anything, the machine itself stands still.
        """
        if len(self._silent(self.workers, seconds)) < len(self.workers):
            self.kill_silent(self.workers, seconds)

    def _silent(self, devices: Iterable[str], seconds: float) -> list[str]:
        workers = {device: self.workers[device] for device in devices if device in self.workers}
        return [device for device, worker in workers.items() if self._looked_at - worker.last_seen > seconds]

    @property
    def guests(self) -> list[str]:
        """The devices of workers that other launchers have started."""
        return [worker.device for worker in self.workers.values() if worker.guest_of]

    def _note_exit(self, end: Exit) -> None:
        process, code = end.process, end.code
        known = (w for w in self.workers.values() if w.process == process and not w.guest_of)
        worker = next(known, None) or self._retired.pop(process, None)
        if worker is not None:
            if end.left:
                self._owner.on_leftovers(worker, end.left)
            for _ in range(MAX_LAST_READS):  # its last messages count, even those that came with its end
                if worker.wire not in self.selector.get_map() or not self._read_line(worker):
                    break
            self._note_end(worker, code)

    def _note_end(self, worker: Worker, code: int) -> None:
        for reader in worker.outputs:
            for _ in range(MAX_LAST_READS):  # not for ever: what it has started may go on writing
                if reader not in self.selector.get_map() or not self.selector.get_key(reader).data():
                    break
            if reader in self.selector.get_map():  # what the script left behind still holds the other end
                self.selector.unregister(reader)
            os.close(reader)
        if worker.wire in self.selector.get_map():
            self.selector.unregister(worker.wire)
        worker.wire.close()
        if self.workers.get(worker.device) is worker:
            del self.workers[worker.device]
            self._owner.on_exit(worker, code)
