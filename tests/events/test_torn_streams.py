"""A stream survives what cuts its lines off: a kill at any byte, a full disk, one lead after another."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from virtualflow.events import EpochStarted, EventLog, Loaded, RunStarted, StepDone, read_events
from virtualflow.events.lines import LineReader, LineWriter

START = RunStarted({"seed": 7}, ["0"], ["0"], 1)


def step(number: int) -> StepDone:
    return StepDone(number, 0, 0.5, "0x1p-1", None, "00000000", "0" * 16, 8, 0.1, 1)


def steps(stream: Path) -> list[int]:
    return [event.step for event in read_events(stream) if isinstance(event, StepDone)]


class Worker:
    """One worker's side of a stream: not the lead until it is made so."""

    def __init__(self, stream: Path, *, lead: bool = False) -> None:
        self.is_lead = lead
        self._log = EventLog(stream, lambda: self.is_lead)
        self.write: Callable[..., None] = self._log.write


@contextlib.contextmanager
def full_disk(room: int) -> Iterator[None]:
    """Files can't grow beyond *room* bytes meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def last_line(stream: Path) -> int:
    """Where the last line begins."""
    return stream.read_bytes().rstrip(b"\n").rfind(b"\n") + 1


def test_a_stream_torn_at_any_byte_loses_no_step_to_the_next_lead(stream: Path) -> None:
    first = Worker(stream, lead=True)
    for event in (START, step(0), step(1)):
        first.write(event)
    whole, begin = stream.read_bytes(), last_line(stream)
    for end in range(begin, len(whole) + 1):
        stream.write_bytes(whole[:end])
        second = Worker(stream)
        for number in (0, 1):
            second.write(step(number))
        second.is_lead = True
        second.write(step(2))
        assert steps(stream) == [0, 1, 2], f"torn after byte {end - begin} of the line"
        assert sum(isinstance(event, RunStarted) for event in read_events(stream)) == 1


def test_a_stream_torn_at_any_byte_keeps_what_a_resumed_job_writes_first(stream: Path) -> None:
    Worker(stream, lead=True).write(step(0))
    whole = stream.read_bytes()
    for end in range(len(whole) + 1):
        stream.write_bytes(whole[:end])
        Worker(stream, lead=True).write(START)
        assert [event for event in read_events(stream) if isinstance(event, RunStarted)] == [START]


def test_two_takeovers_in_a_row_lose_and_repeat_nothing(stream: Path) -> None:
    workers = [Worker(stream, lead=True), Worker(stream), Worker(stream)]
    workers[0].write(START)
    for number in range(3):
        for worker in workers:
            worker.write(step(number))
    for lead, following in ((1, 3), (2, 4)):
        stream.write_bytes(stream.read_bytes()[:-5])  # the last lead was killed while it wrote
        workers[lead].is_lead = True
        for worker in workers[lead:]:
            worker.write(step(following))
    assert steps(stream) == [0, 1, 2, 3, 4]


def test_a_full_disk_in_the_middle_of_an_event_loses_nothing(stream: Path) -> None:
    worker = Worker(stream, lead=True)
    worker.write(step(0))
    length = stream.stat().st_size
    for room in (0, 1, length // 2, length - 1):
        number = len(steps(stream))
        with full_disk(stream.stat().st_size + room):
            worker.write(step(number))
            worker.write(step(number + 1))
            assert steps(stream) == list(range(number))
        worker.write(step(number + 2))
        assert steps(stream) == list(range(number + 3))


def test_the_next_lead_writes_what_a_full_disk_kept_from_the_last_one(stream: Path) -> None:
    first, second = Worker(stream, lead=True), Worker(stream)
    for worker in (first, second):
        worker.write(step(0))
    with full_disk(stream.stat().st_size + 20):
        for number in (1, 2):
            for worker in (first, second):
                worker.write(step(number))
        second.is_lead = True
        second.write(step(3))  # there is not even room for the end of the torn line
    second.write(step(4))
    assert steps(stream) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "damage", [b"what", b"{}", b"\xff\xfe", b"[1]", b'{"event": "step", "time": 1}', b"7", b"null"]
)
def test_a_damaged_line_in_the_middle_is_skipped_and_reported_once(
    stream: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(stream, lead=True)
    worker.write(step(0))
    with stream.open("ab") as file:
        file.write(damage + b"\n" + damage + b"\n")
    worker.write(step(1))
    with caplog.at_level(logging.WARNING, logger="virtualflow"):
        assert [steps(stream), steps(stream)] == [[0, 1], [0, 1]]
    assert len([record for record in caplog.records if str(stream) in record.getMessage()]) == 1


@pytest.mark.parametrize("before", [START, Loaded(1, "step.pt", "0" * 16)])
def test_a_new_lead_compares_with_the_steps_of_this_run_only(stream: Path, before: RunStarted | Loaded) -> None:
    first, second = Worker(stream, lead=True), Worker(stream)
    for number in range(9):
        first.write(step(number))
    first.write(before)  # started again, and dead before it could write of a step
    for number in (1, 2):
        second.write(step(number))
    second.is_lead = True
    second.write(EpochStarted(1, 2, 9, 0))
    assert steps(stream) == [*range(9), 1, 2]


@pytest.mark.parametrize("damage", ["folder", "fifo"])
def test_what_is_no_file_is_moved_aside_and_the_stream_goes_on(tmp_path: Path, damage: str) -> None:
    stream = tmp_path / "events.jsonl"
    stream.mkdir() if damage == "folder" else os.mkfifo(stream)
    LineWriter(stream).append(b"one\n")
    assert list(LineReader(stream).read()) == [b"one"]
    assert (tmp_path / "events.jsonl.damaged").exists()


def test_nobody_waits_for_a_stream_that_is_a_fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "events.jsonl")
    with pytest.raises(OSError, match="not a regular file"):
        list(LineReader(tmp_path / "events.jsonl").read())
