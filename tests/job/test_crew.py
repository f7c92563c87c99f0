"""A crew without processes: lines, output and ends of its workers, in the order that the coordinator relies on."""

from __future__ import annotations

import os
import signal
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import pytest

from virtualflow.core.job_description import JobDescription
from virtualflow.errors import LaunchError
from virtualflow.job.crew import MAX_LAST_READS, MAX_ROUNDS, Crew, Worker
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
from virtualflow.testing import FakeBackend, FakeClock


class Noted:
    """An owner that keeps what it is told, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []
        self.fails_on: type | None = None
        self.error: Exception = LookupError("no such thing")

    def on_message(self, worker: Worker, message: FromWorker) -> None:
        if self.fails_on is not None and isinstance(message, self.fails_on):
            raise self.error
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
    return WorkerSpec("job", JobDescription("s.py"), "", device, ("0", "1"), "127.0.0.1", 30.0)


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


@pytest.mark.parametrize("error", [LookupError, OSError, LaunchError, RecursionError, MemoryError, RuntimeError])
def test_a_message_that_can_not_be_handled_ends_its_worker_alone(
    crew: Crew, backend: FakeBackend, owner: Noted, error: type[Exception]
) -> None:
    crew.start(spec("0"))
    crew.start(spec("1"))
    owner.fails_on, owner.error = FormedGroup, error("whatever it is")
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
    crew.send(crew.workers, AllFinished())
    crew.send(("9",), AllFinished())  # nobody
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


def test_what_still_writes_where_a_worker_has_ended_is_not_listened_to_for_ever(
    crew: Crew, backend: FakeBackend, owner: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew.start(spec("0"))
    worker, read = backend.workers["0"], []

    def write_more(_: Worker, stream: str, data: bytes) -> None:
        read.append(data)
        assert len(read) < 10 * MAX_LAST_READS, "it never ends"
        worker.write(stream, b"more\n")

    monkeypatch.setattr(owner, "on_output", write_more)
    worker.write("stdout", b"a daemon that goes on\n")
    backend.end(worker, 0, output_is_held=True)
    crew.pump(0.0)
    assert owner.events == [("0", "exit", 0)]
    assert "".join(map(bytes.decode, read)).startswith("a daemon that goes on\nmore\n")


def test_who_could_not_be_heard_while_the_loop_was_held_up_is_not_silent(
    crew: Crew, backend: FakeBackend, owner: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    monkeypatch.setattr("virtualflow.job.crew.time", SimpleNamespace(monotonic=clock))
    crew.start(spec("0")).last_seen = clock.now
    crew.pump(0.0)
    backend.workers["0"].wire.beat()
    clock.now += 10.0  # something else took the loop's time
    crew.kill_silent(["0"], 3.0)
    crew.pump(0.0)
    assert (list(crew.workers), owner.events) == (["0"], [])
    clock.now += 10.0  # the whole machine stood still
    crew.pump(0.0)
    crew.kill_silent(["0"], 3.0)
    assert list(crew.workers) == ["0"]
    listen(crew, clock, 4)  # it says nothing
    crew.kill_silent(["0"], 3.0)
    crew.pump(0.0)
    assert owner.events == [("0", "exit", -signal.SIGKILL)]


def listen(crew: Crew, clock: FakeClock, seconds: int) -> None:
    for _ in range(seconds):
        clock.now += 1.0
        crew.pump(0.0)


def test_who_is_silent_while_others_are_not_is_ended(
    crew: Crew, backend: FakeBackend, owner: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    monkeypatch.setattr("virtualflow.job.crew.time", SimpleNamespace(monotonic=clock))
    for device in "01":
        crew.start(spec(device)).last_seen = clock.now
    listen(crew, clock, 4)
    crew.kill_left_behind(3.0)
    crew.pump(0.0)
    assert owner.events == []  # both are: nobody waits for anybody
    backend.workers["0"].wire.beat()
    listen(crew, clock, 1)
    crew.kill_left_behind(3.0)
    crew.pump(0.0)
    assert owner.events == [("1", "exit", -signal.SIGKILL)]


def test_a_guest_that_never_stops_talking_keeps_nobody_from_being_heard(
    crew: Crew, backend: FakeBackend, owner: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs:
        crew.start(spec("0"))
        device = crew.new_guest_name("far")
        crew.admit(device, Wire(ours, FROM_WORKER), "far", 7)
        guest, heard = Wire(theirs, TO_WORKER), Counter[str]()

        def say_more(worker: Worker, message: FromWorker) -> None:
            heard[worker.device] += 1
            assert heard[worker.device] <= 2 * MAX_ROUNDS, "it never ends"
            if worker.device == device:
                guest.send(message)  # there is always something to read on its line

        monkeypatch.setattr(owner, "on_message", say_more)
        guest.send(Leaving())
        for turn in (1, 2):
            backend.workers["0"].send(ReadyToJoin())
            crew.pump(0.0)
            assert heard == {"0": turn, device: turn * MAX_ROUNDS}


def test_what_a_worker_has_sent_before_its_end_is_read_however_much_it_is(
    crew: Crew, backend: FakeBackend, owner: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew.start(spec("0"))
    worker = backend.workers["0"]

    def send_more(_: Worker, message: FromWorker) -> None:  # it goes on as long as anybody listens in this turn
        owner.events.append(("0", message))
        if isinstance(message, FormedGroup) and message.generation < MAX_ROUNDS + 5:
            worker.send(FormedGroup(message.generation + 1))

    monkeypatch.setattr(owner, "on_message", send_more)
    worker.send(FormedGroup(1))
    backend.end(worker, 0, output_is_held=True)
    crew.pump(0.0)
    assert owner.events[-1] == ("0", "exit", 0)
    assert [event[1] for event in owner.events[:-1]] == [FormedGroup(n) for n in range(1, MAX_ROUNDS + 6)]


def test_only_what_a_worker_writes_to_stderr_explains_its_end(crew: Crew, backend: FakeBackend) -> None:
    worker = crew.start(spec("0"))
    for stream in ("stdout", "stderr"):
        backend.workers["0"].write(stream, f"{stream}\n".encode())
    crew.pump(0.0)
    assert worker.stderr_tail == b"stderr\n"


def test_lines_that_are_cut_end_for_the_workers_too(crew: Crew, backend: FakeBackend) -> None:
    crew.start(spec("0"))
    before = backend.workers["0"]
    crew.start(spec("0"))  # the first one still runs
    crew.cut_lines()
    assert [worker.wire.receive() for worker in (before, backend.workers["0"])] == [None, None]
    for worker in (before, backend.workers["0"]):
        backend.end(worker, 0)
    crew.pump(0.0)
    assert crew.is_empty


def test_who_has_hung_up_and_does_not_end_is_given_up(
    crew: Crew, backend: FakeBackend, owner: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    monkeypatch.setattr("virtualflow.job.crew.time", SimpleNamespace(monotonic=clock))
    for device in "01":
        crew.start(spec(device)).last_seen = clock.now
    backend.workers["0"].wire.cut()
    crew.pump(0.0)
    listen(crew, clock, 2)
    crew.end_unreported(3.0)
    assert owner.events == []
    listen(crew, clock, 2)
    crew.end_unreported(3.0)
    assert (owner.events, list(crew.workers)) == ([("0", "exit", -signal.SIGKILL)], ["1"])


def test_a_worker_leaves_no_descriptor_behind(crew: Crew, backend: FakeBackend) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    crew.start(spec("0"))
    backend.end(backend.workers["0"], 0)
    crew.pump(0.0)
    assert sorted(os.listdir("/proc/self/fd")) == before
