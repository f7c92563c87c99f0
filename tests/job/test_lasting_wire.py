"""A worker's end of its line, when the other end is gone and another coordinator takes over."""

from __future__ import annotations

import socket
import threading

from virtualflow.core.generation import Cause, Generation
from virtualflow.core.standing import Standing
from virtualflow.job.lasting_wire import LastingWire
from virtualflow.job.spec import EXIT, Failure
from virtualflow.job.wire import Wire
from virtualflow.job.wire_messages import (
    FROM_WORKER,
    WORKER_REPORTS,
    EarlyResult,
    FormedGroup,
    TrainerMade,
    WorkerFailed,
    WorkerReport,
)

STANDING = Standing(Generation(0, Cause.START, ("0",)), has_formed=True, newest=0)
REPORT = WorkerReport("0", STANDING, (7, 8), 1, None)


def moved(wire: LastingWire) -> tuple[WorkerReport, list[object]]:
    """The report to another coordinator, and what came to it besides."""
    ours, theirs = socket.socketpair()
    with theirs:
        wire.move_to(ours, lambda: REPORT)
        ours.shutdown(socket.SHUT_WR)
        report, _, rest = theirs.recv(1 << 20).partition(b"\n")
        others, theirs_end = socket.socketpair()
        with others, theirs_end:
            others.sendall(rest)
            received: list[object] = list(Wire(theirs_end, FROM_WORKER).receive() or []) if rest else []
    ours.close()
    return WORKER_REPORTS.decode(report), received


def orphaned() -> LastingWire:
    ours, theirs = socket.socketpair()
    theirs.close()
    return LastingWire(ours)


def test_what_lasts_is_told_to_each_coordinator_after_the_report() -> None:
    wire = orphaned()
    for message in (TrainerMade((4, 4), 10), FormedGroup(3), EarlyResult(0, "0.5")):
        wire.send(message)
    wire.keep(EarlyResult(1, "0.25"))
    for _ in range(2):
        assert moved(wire) == (REPORT, [TrainerMade((4, 4), 10), EarlyResult(0, "0.5"), EarlyResult(1, "0.25")])


def test_the_last_word_waits_for_the_next_coordinator() -> None:
    wire = orphaned()
    wire.is_moving = True
    failure = WorkerFailed(Failure("0", EXIT, "it failed"))
    speaker = threading.Thread(target=wire.send_last, args=(failure,))
    speaker.start()
    ours, theirs = socket.socketpair()
    with theirs:
        wire.move_to(ours, lambda: REPORT)
        wire.is_moving = False
        speaker.join()
        lines = theirs.recv(1 << 20).splitlines()
    assert FROM_WORKER.decode(lines[-1]) == failure
    ours.close()


def test_the_last_word_of_a_worker_without_a_coordinator_is_given_up() -> None:
    wire = orphaned()
    wire.send_last(FormedGroup(1))
    wire.fileno()
    wire.close()
