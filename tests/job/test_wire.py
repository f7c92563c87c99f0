"""Lines between a coordinator and its workers: nobody is held up, nothing is torn, and silence is noticed."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.manager.managed import until
from virtualflow.core.job_description import JobDescription
from virtualflow.core.membership import JobContext
from virtualflow.job import wire as wire_module
from virtualflow.job.member import ORPHANED, Member
from virtualflow.job.spec import WorkerSpec
from virtualflow.job.wire import Wire
from virtualflow.job.wire_messages import FROM_WORKER, TO_WORKER, FromWorker, Heartbeat, JoinRefused, Leaving

LARGE = "x" * 2**22  # more than any socket holds


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_who_does_not_read_holds_nobody_up_and_gets_everything_later(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ends[0].setblocking(False)
    ours, theirs = Wire(ends[0], TO_WORKER), Wire(ends[1], FROM_WORKER)
    assert ours.send(JoinRefused(LARGE))
    assert ours.send(Leaving())
    received: list[FromWorker | Heartbeat] = []
    while len(received) < 2:
        ours.flush()
        received += theirs.receive() or []
    assert received == [JoinRefused(LARGE), Leaving()]


def test_who_never_reads_is_cut_off(ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_module, "READ_ON_SECONDS", 0.05)
    ends[0].setblocking(False)
    ours = Wire(ends[0], TO_WORKER)
    assert ours.send(JoinRefused(LARGE))
    assert until(lambda: not ours.flush())
    assert ours.receive() is None


def test_a_signal_handler_that_sends_tears_no_message(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = Wire(ends[0], TO_WORKER), Wire(ends[1], FROM_WORKER)
    before = signal.signal(signal.SIGUSR1, lambda *_: ours.send(Leaving()))
    received: list[FromWorker | Heartbeat] = []

    def read_on() -> None:
        time.sleep(0.2)  # the large message waits meanwhile, half sent
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        time.sleep(0.2)
        while len(received) < 2:
            received.extend(theirs.receive() or [])

    reader = threading.Thread(target=read_on)
    reader.start()
    try:
        ours.send(JoinRefused(LARGE))
        reader.join(60)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert received == [JoinRefused(LARGE), Leaving()]


def test_a_worker_elsewhere_notices_a_coordinator_that_is_silent(ends: tuple[socket.socket, socket.socket]) -> None:
    spec = WorkerSpec("job", JobDescription("s.py"), "", "a/1", ("a/1",), "127.0.0.1", 1.0, is_elsewhere=True)
    coordinator = Wire(ends[1], FROM_WORKER)
    member = Member(spec, JobContext("job", Path()), Wire(ends[0], TO_WORKER))
    try:
        for _ in range(10):
            coordinator.beat()
            time.sleep(0.05)
        assert member.seen != ORPHANED
        assert until(lambda: member.seen == ORPHANED)
    finally:
        signal.alarm(0)
