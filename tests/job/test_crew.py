"""A crew without processes: lines, output and ends of its workers, in the order that the coordinator relies on."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator, Sequence

import pytest

from tests.job.fakes import FakeBackend
from virtualflow.job.crew import Crew, Worker
from virtualflow.job.spec import WorkerSpec
from virtualflow.job.wire import Wire
from virtualflow.job.wire_messages import (
    FROM_WORKER,
    TO_WORKER,
    AllFinished,
    FormedGroup,
    FromWorker,
    Leaving,
    ReadyToJoin,
    Released,
)


class Noted:
    """An owner that keeps what it is told, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []
        self.fails_on: type | None = None

    def on_message(self, worker: Worker, message: FromWorker) -> None:
        if self.fails_on is not None and isinstance(message, self.fails_on):
            raise LookupError("no such thing")
        self.events.append((worker.device, message))

    def on_output(self, worker: Worker, stream: str, data: bytes) -> None:
        self.events.append((worker.device, stream, data))

    def on_exit(self, worker: Worker, code: int) -> None:
        self.events.append((worker.device, "exit", code))

    def on_leftovers(self, worker: Worker, commands: Sequence[str]) -> None:
        self.events.append((worker.device, "left", *commands))


@pytest.fixture
def backend() -> Iterator[FakeBackend]:  # type: ignore[override]
    with FakeBackend() as backend:
        yield backend


@pytest.fixture
def owner() -> Noted:
    return Noted()


@pytest.fixture
def crew(backend: FakeBackend, owner: Noted) -> Iterator[Crew]:
    crew = Crew(backend, owner)
    with crew.selector:
        yield crew
        for worker in list(crew.workers.values()):
            crew.kill(worker.device)
        crew.pump(0.0)


def spec(device: str) -> WorkerSpec:
    return WorkerSpec("job", "", device, ("0", "1"), "s.py", (), "127.0.0.1", 30.0)


def test_a_message_is_passed_on_with_its_worker(crew: Crew, backend: FakeBackend, owner: Noted) -> None:
    crew.start(spec("0"))
    crew.start(spec("1"))
    backend.workers["1"].send(FormedGroup(3))
    crew.pump(0.0)
    assert owner.events == [("1", FormedGroup(3))]


def test_output_and_messages_come_before_the_end_of_their_worker(
    crew: Crew, backend: FakeBackend, owner: Noted
) -> None:
    crew.start(spec("0"))
    worker = backend.workers["0"]
    worker.write("stderr", b"why\n")
    worker.send(Leaving())
    backend.end(worker, 3, left=["sleep 9"])
    crew.pump(0.0)
    assert sorted(map(str, owner.events[:-1])) == sorted(
        map(str, [("0", "stderr", b"why\n"), ("0", Leaving()), ("0", "left", "sleep 9")])
    )
    assert owner.events[-1] == ("0", "exit", 3)
    assert crew.is_empty


@pytest.mark.parametrize("line", [b"nonsense\n", b"[]\n", b'{"type": "Nobody"}\n', b'{"type": "FormedGroup"}\n'])
def test_a_worker_that_sends_no_message_of_ours_is_killed_and_the_others_go_on(
    crew: Crew, backend: FakeBackend, owner: Noted, line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    crew.start(spec("0"))
    crew.start(spec("1"))
    backend.workers["0"].send_bytes(line)
    crew.pump(0.0)
    backend.workers["1"].send(ReadyToJoin())
    crew.pump(0.0)
    assert owner.events == [("0", "exit", -signal.SIGKILL), ("1", ReadyToJoin())]
    assert "device 0 sent what can't be understood" in caplog.text


def test_a_message_that_can_not_be_handled_ends_its_worker_alone(
    crew: Crew, backend: FakeBackend, owner: Noted
) -> None:
    crew.start(spec("0"))
    crew.start(spec("1"))
    owner.fails_on = FormedGroup
    backend.workers["0"].send(FormedGroup(10**6))
    backend.workers["1"].send(ReadyToJoin())
    crew.pump(0.0)
    assert set(owner.events) == {("0", "exit", -signal.SIGKILL), ("1", ReadyToJoin())}


def test_a_heartbeat_is_a_sign_of_life_and_no_message(crew: Crew, backend: FakeBackend, owner: Noted) -> None:
    worker = crew.start(spec("0"))
    worker.last_seen = 0.0
    backend.workers["0"].wire.beat()
    crew.pump(0.0)
    assert owner.events == []
    crew.kill_silent(["0"], 1000.0)
    assert list(crew.workers) == ["0"]
    worker.last_seen = 0.0
    crew.kill_silent(["0"], 0.001)
    crew.pump(0.0)
    assert owner.events == [("0", "exit", -signal.SIGKILL)]


def test_who_is_released_gets_the_message_and_the_others_do_not(crew: Crew, backend: FakeBackend) -> None:
    for device in "01":
        crew.start(spec(device))
    crew.release("0")
    crew.send_to_all(AllFinished())
    crew.send("9", AllFinished())  # nobody
    assert backend.workers["0"].received() == [Released(), AllFinished()]
    assert backend.workers["1"].received() == [AllFinished()]


def test_of_a_worker_whose_device_has_another_one_only_the_output_is_passed_on(
    crew: Crew, backend: FakeBackend, owner: Noted
) -> None:
    crew.start(spec("0"))
    before = backend.workers["0"]
    crew.start(spec("0"))
    before.send(Leaving())
    before.write("stdout", b"late\n")
    backend.end(before, 0)
    crew.pump(0.0)
    assert owner.events == [("0", "stdout", b"late\n")]
    assert not crew.is_empty


def test_a_guest_whose_line_breaks_is_lost_unless_it_was_released(crew: Crew, owner: Noted) -> None:
    for released in (False, True):
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        device = crew.new_guest_name("far")
        crew.admit(device, Wire(ours, FROM_WORKER), "far", 7)
        assert crew.place_of(crew.workers[device]).machine == "far"
        if released:
            crew.release(device)
            assert Wire(theirs, TO_WORKER).receive() == [Released()]
        theirs.close()
        crew.pump(0.0)
    assert owner.events == [("far/1", "exit", -signal.SIGKILL), ("far/2", "exit", 0)]
    assert crew.guests == []


def test_a_worker_whose_output_somebody_still_holds_makes_room_for_the_next(crew: Crew, backend: FakeBackend) -> None:
    for _ in range(2):
        crew.start(spec("0"))
        backend.end(backend.workers["0"], 0, output_is_held=True)
        crew.pump(0.0)
        assert crew.is_empty
    assert len(crew.selector.get_map()) == 1  # the backend alone
