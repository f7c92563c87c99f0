"""Very many workers of one job in a few processes: a backend for ``control_plane``.

Each process serves the lines of its workers, which are ``FakeMember``s; it gets each line, as a descriptor, from the
backend. What the workers read and send is counted in memory that all share.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import selectors
import signal
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from virtualflow.core.job_view import DeviceUse
from virtualflow.job.backend import Exit, Place
from virtualflow.job.spec import WorkerSpec
from virtualflow.job.wire import Wire
from virtualflow.job.wire_messages import TO_WORKER, AllFinished, Heartbeat, Message, Released, ResourceUse, ToWorker
from virtualflow.testing import FakeMember

PROCESSES = 2
LOOPBACK = "127.0.0.1"
REPORT_SECONDS = 2.0  # between two reports of what a worker uses, as a real one sends them
ORDER_BYTES = 1 << 20
_EXIT = struct.Struct("qq")  # a worker's number and its exit code


@dataclass(frozen=True, slots=True)
class Counts:
    """What all workers together have sent and received so far: messages and bytes."""

    sent: int
    bytes_sent: int
    received: int
    bytes_received: int


class Swarm:
    """Fulfils ``job.backend``. Its workers train nothing, and end when they are struck or told to."""

    address = LOOPBACK

    def __init__(self, virtual_nodes: int) -> None:
        self._virtual_nodes = virtual_nodes
        self._by_device: dict[str, int] = {}
        self._started = 0
        self._orders: list[socket.socket] = []
        self._processes: list[Any] = []
        self._fork = multiprocessing.get_context("fork")
        self._tallies = [self._fork.RawArray("q", 4) for _ in range(PROCESSES)]
        self._ended, self._ending = os.pipe()

    def __enter__(self) -> Self:
        for tally in self._tallies:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ORDER_BYTES)
            self._orders.append(ours)
            serve = _Server(theirs, self._ending, tally, self._virtual_nodes, tuple(self._orders)).run
            self._processes.append(self._fork.Process(target=serve, daemon=True))
            self._processes[-1].start()
            theirs.close()
        os.set_blocking(self._ended, False)
        return self

    def __exit__(self, *_: object) -> None:
        for order, process in zip(self._orders, self._processes, strict=True):
            order.close()
            process.join(10.0)
        os.close(self._ended)
        os.close(self._ending)

    def counts(self) -> Counts:
        return Counts(*(sum(tally[place] for tally in self._tallies) for place in range(4)))

    def strike(self, device: str) -> None:
        """The worker of *device* dies."""
        self.kill(self._by_device[device], signal.SIGKILL)

    def finish(self) -> None:
        """All scripts come to their end."""
        for order in self._orders:
            order.send(pickle.dumps(None))

    def check(self, devices: Sequence[str]) -> None: ...

    def start(self, spec: WorkerSpec, stdout: int, stderr: int, control: int) -> int:
        self._started += 1
        self._by_device[spec.device] = self._started
        order = self._orders[self._started % PROCESSES]
        socket.send_fds(order, [pickle.dumps((self._started, spec))], [control])
        return self._started

    def exits(self, timeout_seconds: float = 0.0) -> list[Exit]:
        try:
            data = os.read(self._ended, _EXIT.size << 10)
        except BlockingIOError:
            return []
        return [Exit(process, code) for process, code in _EXIT.iter_unpack(data)]

    def kill(self, process: int, signal_number: int) -> None:
        if signal_number in (signal.SIGINT, signal.SIGKILL):
            self._orders[process % PROCESSES].send(pickle.dumps((process, signal_number)))

    def place_of(self, process: int) -> Place:
        return Place(LOOPBACK, process)

    def fileno(self) -> int:
        return self._ended


class _Counted(socket.socket):
    """A worker's end of its line, which counts bytes."""

    tally: Any

    def send(self, data: Any, flags: int = 0) -> int:
        sent = super().send(data, flags)
        self.tally[1] += sent
        return sent

    def recv(self, size: int, flags: int = 0) -> bytes:
        data = super().recv(size, flags)
        self.tally[3] += len(data)
        return data


class _Server:
    """One process: serves its workers until nobody gives orders any more."""

    def __init__(
        self, orders: socket.socket, ending: int, tally: Any, virtual_nodes: int, inherited: Sequence[socket.socket]
    ) -> None:
        """*inherited* are the other ends of orders: held here, too, they would hide that nobody gives any."""
        self._orders = orders
        self._inherited = inherited
        self._ending = ending
        self._tally = tally
        self._virtual_nodes = virtual_nodes
        self._selector = selectors.DefaultSelector()
        self._members: dict[int, tuple[FakeMember, Wire[ToWorker]]] = {}
        self._report_at = 0.0

    def run(self) -> None:
        for order in self._inherited:
            order.close()
        self._orders.setblocking(False)
        self._selector.register(self._orders, selectors.EVENT_READ, None)
        while True:
            for key, _ in self._selector.select(0.2):
                if key.data is None:
                    if not self._take_orders():
                        return
                elif key.data in self._members:
                    self._read(key.data)
            self._report()

    def _take_orders(self) -> bool:
        """All that have come: a worker that starts late must not wait until the others have been served in turn."""
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._orders, ORDER_BYTES, 1)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._take(pickle.loads(data), descriptors)

    def _take(self, order: Any, descriptors: Sequence[int]) -> None:
        if order is None:
            for member, _ in list(self._members.values()):
                member.finish()
        elif isinstance(order[1], WorkerSpec):
            self._start(order[0], order[1], descriptors[0])
        elif order[0] in self._members:
            self._end(order[0], -order[1])

    def _start(self, process: int, spec: WorkerSpec, descriptor: int) -> None:
        connection = _Counted(fileno=descriptor)
        connection.tally = self._tally
        connection.setblocking(False)
        wire = Wire(connection, TO_WORKER)

        def send(message: Message) -> None:
            self._tally[0] += 1
            wire.send(message)

        self._members[process] = member, wire = FakeMember(spec, send, self._virtual_nodes), wire
        self._selector.register(wire, selectors.EVENT_READ, process)
        member.begin()

    def _read(self, process: int) -> None:
        member, wire = self._members[process]
        messages = wire.receive()
        if messages is None:
            self._end(process, -signal.SIGKILL)
            return
        self._tally[2] += len(messages)
        for message in messages:
            if isinstance(message, Heartbeat):
                continue
            if isinstance(message, (Released, AllFinished)):
                self._end(process, 0)
                return
            member.take(message)

    def _end(self, process: int, code: int) -> None:
        _, wire = self._members.pop(process)
        self._selector.unregister(wire)
        wire.close()
        os.write(self._ending, _EXIT.pack(process, code))

    def _report(self) -> None:
        """Send what waits, and now and then what a real worker's own thread reports."""
        is_due = time.monotonic() > self._report_at
        if is_due:
            self._report_at = time.monotonic() + REPORT_SECONDS
        for _, wire in self._members.values():
            if is_due:
                self._tally[0] += 1
                wire.send(ResourceUse(DeviceUse(1.0, 1 << 30)))
            else:
                wire.flush()
