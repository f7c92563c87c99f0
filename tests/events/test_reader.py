"""One reader: what is new, once; the end of a stream without its beginning; and a stream that others write."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from virtualflow.backends.remote_files import Inbox, Outbox
from virtualflow.cli.progress import ProgressBar
from virtualflow.errors import EventStreamError
from virtualflow.events import EventReader, StepDone, encode, lines, read_events, read_newest_first
from virtualflow.job.history import Watch


def step(number: int, loss: float = 0.5) -> StepDone:
    return StepDone(number, 0, loss, loss.hex(), None, "00000000", "0" * 16, 8, 0.1, 1)


def line(number: int) -> bytes:
    return encode(step(number), 1.5) + b"\n"


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def append(stream: Path, data: bytes) -> None:
    with stream.open("ab") as file:
        file.write(data)


def test_an_event_comes_once_and_only_when_its_line_is_whole(stream: Path) -> None:
    reader = EventReader(stream)
    assert list(reader.read()) == []
    for byte in line(0)[:-1]:
        append(stream, bytes([byte]))
        assert list(reader.read()) == []
    append(stream, b"\n" + line(1))
    assert list(reader.read()) == [(1.5, step(0)), (1.5, step(1))]
    assert list(reader.read()) == []
    assert reader.damaged == 0


def test_damaged_lines_are_counted(stream: Path) -> None:
    append(stream, line(0) + b"what\n" + line(1)[:-9] + b"\n\n" + line(2))
    reader = EventReader(stream)
    assert [event for _, event in reader.read()] == [step(0), step(2)]
    assert reader.damaged == 2


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 5e-324])
def test_a_loss_of_any_value_comes_back(stream: Path, loss: float) -> None:
    append(stream, encode(step(0, loss), 1.5) + b"\n")
    (event,) = read_events(stream)
    assert isinstance(event, StepDone)
    assert (event.loss.hex(), event.loss_bits) == (loss.hex(), loss.hex())


@pytest.mark.parametrize("block", [1, 7, 100, 2**18])
def test_the_newest_events_come_first_whatever_is_read_at_a_time(
    stream: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "BLOCK", block)
    append(stream, line(0) + b"what\n" + line(1) + line(2) + line(3)[:-1])
    assert [event for _, event in read_newest_first(stream)] == [step(2), step(1), step(0)]
    assert list(read_events(stream)) == [step(0), step(1), step(2)]


@pytest.mark.parametrize("data", [b"", b"\n", b"{", b"\n\n"])
def test_a_stream_without_an_event_has_none_from_either_end(stream: Path, data: bytes) -> None:
    stream.write_bytes(data)
    assert [list(read_events(stream)), list(read_newest_first(stream))] == [[], []]


def test_a_stream_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    for read in (read_events, read_newest_first):
        with pytest.raises(EventStreamError, match=r"cannot read the event stream .*nowhere"):
            list(read(tmp_path / "nowhere"))


def test_a_damaged_line_ends_neither_the_progress_bar_nor_a_history(stream: Path) -> None:
    append(stream, b"what\n" + line(0))
    ProgressBar(stream).refresh()
    watch = Watch(stream)
    watch.read()
    assert watch.step == 1


def test_a_damaged_line_from_another_machine_ends_nothing_there(tmp_path: Path) -> None:
    (here := tmp_path / "here").mkdir()
    (away := tmp_path / "away").mkdir()
    (here / "events.jsonl").write_bytes(line(0) + line(1)[:-9])
    (away / "events.jsonl").write_bytes(b"what\n" + line(0) + line(1) + line(2) + line(3)[:-9])
    for news in Outbox(away).new_pieces():
        Inbox(here).put(*news)
    assert list(read_events(here / "events.jsonl")) == [step(0), step(1), step(2)]
