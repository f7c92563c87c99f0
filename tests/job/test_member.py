"""A worker's membership against a coordinator that is just the other end of its line."""

from __future__ import annotations

import math
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from virtualflow.core.generation import Cause, Generation
from virtualflow.core.job_description import JobDescription
from virtualflow.core.membership import JobContext
from virtualflow.errors import CoordinatorLostError, PeerLostError
from virtualflow.job.group_posts import PostBox
from virtualflow.job.lasting_wire import LastingWire
from virtualflow.job.member import ORPHANED, Leave, Member
from virtualflow.job.post_office import packed
from virtualflow.job.rendezvous import TorchGroup
from virtualflow.job.spec import WorkerSpec
from virtualflow.job.wire import Wire
from virtualflow.job.wire_messages import (
    FROM_WORKER,
    AllFinished,
    EarlyResult,
    FirstLoopLeft,
    FormedGroup,
    FromWorker,
    GroupLetters,
    GroupPost,
    Heartbeat,
    JoinRefused,
    Leaving,
    NewGeneration,
    PeerLost,
    Released,
    ScriptFinished,
    StepTime,
    ToWorker,
    TrainerMade,
)


class Line:
    """A member of a job, on device 0 if no other is given, and the coordinator's end of its line."""

    def __init__(self, device: str = "0", **options: Any) -> None:
        self._theirs, self._ours = socket.socketpair()
        self._wire = Wire(self._theirs, FROM_WORKER)
        spec = WorkerSpec("job", JobDescription("s.py"), "", device, ("0",), "127.0.0.1", 30.0, **options)
        self.member = Member(spec, JobContext("job", Path()), LastingWire(self._ours))
        self._seen: list[FromWorker | Heartbeat] = []

    def send(self, message: ToWorker) -> None:
        self._wire.send(message)

    def publish(self, number: int, cause: Cause, *devices: str, **fields: Any) -> None:
        """Send a generation, and wait until the member has received it."""
        self.send(NewGeneration(Generation(number, cause, devices, **fields)))
        until(lambda: self.member.seen == number)

    def break_off(self, data: bytes = b"") -> None:
        self._theirs.sendall(data)
        self._theirs.shutdown(socket.SHUT_RDWR)

    def next_message(self) -> FromWorker | Heartbeat:
        while not self._seen:
            self._seen += self._wire.receive() or []
        return self._seen.pop(0)

    def close(self) -> None:
        self._theirs.close()
        until(lambda: self.member.seen == ORPHANED)  # nobody reads from its socket any more
        self._ours.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = threading.Event()
    for _ in range(6000):
        if condition():
            return
        deadline.wait(0.01)
    pytest.fail("it never came to that")


@pytest.fixture(autouse=True)
def no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """An orphaned member has its process ended after a while; this one is the tests'."""
    monkeypatch.setattr(signal, "alarm", lambda _: 0)


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.close()


def handover_unexpected(_: object) -> None:
    raise AssertionError("no state should move")


def test_a_change_is_due_once_all_workers_have_seen_the_generation(line: Line) -> None:
    line.publish(1, Cause.RESIZE, "0")
    assert not line.member.change_is_due
    line.member.all_have_seen(1)
    assert line.member.change_is_due


def test_a_remap_keeps_the_group_and_is_reported(line: Line) -> None:
    line.publish(1, Cause.REMAP, "0", owners=("0", "0"))
    line.member.all_have_seen(1)
    line.member.change(handover_unexpected)
    assert line.next_message() == FormedGroup(1)
    assert line.member.mapping(2).devices == ("0", "0")
    assert [(change.generation, change.cause) for change in line.member.changes] == [(1, "remap")]
    assert not line.member.change_is_due


def test_a_worker_that_stays_alone_forms_no_group_and_goes_on(line: Line) -> None:
    line.publish(2, Cause.RESIZE, "0", leaving=("1",))
    line.member.all_have_seen(2)
    line.member.change(handover_unexpected)
    assert line.next_message() == FormedGroup(2)
    assert (line.member.generation, line.member.group) == (2, None)


def test_a_worker_that_is_not_in_the_new_generation_stays_until_it_is_released(line: Line) -> None:
    line.publish(1, Cause.RESIZE, "1", joining=("1",), leaving=("0",), sender="2")
    line.member.all_have_seen(1)
    line.send(Released())
    with pytest.raises(Leave):
        line.member.change(handover_unexpected)


def test_a_loss_keeps_a_worker_that_was_about_to_leave(line: Line) -> None:
    line.publish(1, Cause.RESIZE, "1", leaving=("0",), sender="2")
    line.member.all_have_seen(1)
    line.publish(2, Cause.LOSS, "0")
    with pytest.raises(PeerLostError):
        line.member.change(handover_unexpected)


def test_a_worker_recovers_with_the_generation_of_the_loss(line: Line) -> None:
    line.publish(1, Cause.LOSS, "0")
    line.member.recover()
    assert [line.next_message(), line.next_message()] == [PeerLost(0), FormedGroup(1)]
    assert line.member.generation == 1


def deliver(word: GroupPost | GroupLetters, line: Line) -> None:
    """To the worker of rank 1, as the coordinator does."""
    value = word.value if isinstance(word, GroupPost) else word.values[1]
    line.send(packed(word.group, {word.key: value}))


def test_a_worker_of_another_type_of_device_is_refused_before_it_gets_the_state() -> None:
    line = Line(joins=True)
    posts = PostBox(lambda word: deliver(word, line))
    sender = TorchGroup("handover/1", 0, 2, "cuda")
    line.publish(1, Cause.RESIZE, "1", "0", joining=("0",), sender="1")

    def join() -> str:
        with pytest.raises(Leave):
            line.member.join(handover_unexpected)
        return "left"

    with ThreadPoolExecutor(2) as pool:
        joined = pool.submit(join)
        formed = pool.submit(sender.form, posts, "127.0.0.1", 30.0)
        while not isinstance(message := line.next_message(), JoinRefused):
            if isinstance(message, GroupPost):
                posts.add(message.group, [(message.key, message.value)])
            elif isinstance(message, GroupLetters):
                posts.add(message.group, [(message.key, message.values[0])])
        formed.result()
        assert joined.result() == "left"
    assert "its device is of type cpu and the job's are of type cuda" in message.reason
    sender.break_off()
    line.close()


def test_the_end_of_the_job_is_agreed_on_before_a_worker_ends(line: Line) -> None:
    line.send(AllFinished())
    line.member.finish()
    assert line.next_message() == ScriptFinished()


def test_a_stop_is_due_at_the_boundary_that_all_know_of(line: Line) -> None:
    line.publish(1, Cause.STOP, "0")
    assert not line.member.must_stop
    line.member.all_have_seen(1)
    assert line.member.must_stop
    assert not line.member.orphaned


@pytest.mark.parametrize("garbage", [b"", b"nonsense\n", b'{"type": "ReadyToJoin"}\n'], ids=["gone", "garbage", "ours"])
def test_without_a_coordinator_that_makes_sense_a_worker_is_orphaned(line: Line, garbage: bytes) -> None:
    line.break_off(garbage)
    until(lambda: line.member.seen == ORPHANED)
    with pytest.raises(CoordinatorLostError):
        line.member.finish()


def test_a_joiner_gets_the_results_of_early_calls_in_order_whatever_they_are() -> None:
    line = Line(joins=True)
    for call, value in enumerate(("0.5", "NaN", "null", "Infinity", '{"bytes": "MQ=="}')):
        line.send(EarlyResult(call, value))
    results = [line.member.recorded() for _ in range(5)]
    assert math.isnan(results.pop(1))
    assert results == [0.5, None, math.inf, {"bytes": "MQ=="}]
    line.close()


def test_results_of_early_calls_are_reported_with_their_number(line: Line) -> None:
    line.member.record(0.25)
    line.member.record(math.nan)
    assert line.next_message() == EarlyResult(0, "0.25")
    assert line.next_message() == EarlyResult(1, "NaN")


def test_only_the_first_trainer_is_reported_and_joined(line: Line) -> None:
    line.member.new_trainer(1, [4, 4], 100)
    line.member.new_trainer(2, [2], 7)
    assert line.member.begin_training()
    assert not line.member.begin_training()
    assert [line.next_message(), line.next_message()] == [TrainerMade((4, 4), 100), FirstLoopLeft()]


def test_step_times_are_reported_if_somebody_needs_them(line: Line) -> None:
    reporting = Line(reports_pace=True)
    for each in (line, reporting):
        each.member.report_pace(7, 0.5, 1)
        each.member.begin_training()
        each.member.begin_training()
    assert line.next_message() == FirstLoopLeft()
    assert reporting.next_message() == StepTime(7, 0.5, 1, 0)
    reporting.close()


def test_a_worker_waits_for_the_first_mapping_by_speed() -> None:
    line = Line(balances=True)
    line.publish(1, Cause.REMAP, "0", owners=("0", "0", "0"))
    line.member.new_trainer(1, [1, 1, 1], 10)
    assert [line.next_message(), line.next_message()] == [TrainerMade((1, 1, 1), 10), FormedGroup(1)]
    line.close()


def test_a_joiner_gets_the_state_from_its_sender_and_both_are_in_the_new_group(line: Line) -> None:
    joiner, state = Line("1", joins=True), torch.zeros(2)
    for each in (line, joiner):
        each.publish(1, Cause.RESIZE, "0", "1", joining=("1",), sender="0")
    line.member.all_have_seen(1)
    noted: list[tuple[Line, FromWorker | Heartbeat]] = []

    def relay(one: Line, other: Line) -> None:
        """Be the coordinator of one of them, until it has formed its group."""
        while not isinstance(message := one.next_message(), FormedGroup):
            if isinstance(message, GroupPost):
                other.send(packed(message.group, {message.key: message.value}))
            elif isinstance(message, GroupLetters):
                other.send(packed(message.group, {message.key: message.values[int(one is line)]}))
            else:
                noted.append((one, message))

    def take_part(one: Line, move: Callable[[Any], None]) -> Tensor:
        move(lambda group: group.broadcast(state if one is joiner else torch.ones(2), 0).wait())
        assert one.member.group is not None
        total = torch.tensor([float(one.member.device) + 1.0])
        one.member.group.sum(total).wait()
        return total

    with ThreadPoolExecutor(4) as pool:
        relays = [pool.submit(relay, line, joiner), pool.submit(relay, joiner, line)]
        totals = [
            pool.submit(take_part, line, line.member.change),
            pool.submit(take_part, joiner, joiner.member.join),
        ]
        assert [total.result().item() for total in totals] == [3.0, 3.0]
        for each in relays:
            each.result()
    assert state.tolist() == [1.0, 1.0]
    assert [(each.member.changes[0].joined, each.member.changes[0].left) for each in (line, joiner)] == [
        (("1",), ())
    ] * 2
    for each in (line, joiner):
        each.member.group.break_off()  # type: ignore[union-attr]
    joiner.close()


def test_a_notice_is_passed_on_at_once(line: Line) -> None:
    line.member.leave_when_possible()
    assert line.next_message() == Leaving()
