"""What a lead writes on a machine without the job's folder arrives there, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from virtualflow.backends import remote_files
from virtualflow.backends.remote_files import Inbox, Outbox
from virtualflow.events import EpochStarted, EventLog, StepDone, read_events


def step(number: int) -> StepDone:
    return StepDone(number, 0, 1.0, "", None, "", "", 8, 0.1, 1)


def steps(stream: Path) -> list[int]:
    return [event.step for event in read_events(stream) if isinstance(event, StepDone)]


def test_the_next_lead_on_another_machine_fills_the_gap_and_repeats_nothing(tmp_path: Path) -> None:
    job, first, second = (tmp_path / name for name in ("job", "first", "second"))
    for folder in (job, first, second):
        folder.mkdir()
    leads = [True, False]
    logs = [EventLog(folder / "events.jsonl", lambda n=n: leads[n]) for n, folder in enumerate((first, second))]
    outbox, inbox = Outbox(first), Inbox(job)
    for log in logs:
        log.write(EpochStarted(0, 1, 6, 0))
    for number in range(5):
        for log in logs:
            log.write(step(number))
        if number == 2:  # the rest is lost with the machine
            for news in outbox.new_pieces():
                inbox.put(*news)
    assert outbox.new_pieces()
    leads[:] = [False, True]
    logs[1].write(step(5))
    for news in Outbox(second).new_pieces():
        Inbox(job).put(*news)
    assert steps(job / "events.jsonl") == [0, 1, 2, 3, 4, 5]


def test_whole_lines_and_whole_checkpoints_are_sent_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_files, "PIECE", 2)
    job, away = tmp_path / "job", tmp_path / "away"
    (away / "checkpoints").mkdir(parents=True)
    job.mkdir()
    outbox, inbox = Outbox(away), Inbox(job)
    (away / "events.jsonl").write_bytes(b"{} half a line")
    (away / "checkpoints" / ".step-000000001.pt.7.partial").touch()
    assert outbox.new_pieces() == []
    for number in range(1, 4):
        (away / "checkpoints" / f"step-00000000{number}.pt").write_bytes(bytes([number]) * (2 + number))
    pieces = 0
    while result := outbox.new_pieces():
        pieces += len(result)
        for news in result:
            inbox.put(*news)
    assert pieces == 2 + 2 + 3
    assert [file.read_bytes() for file in sorted((job / "checkpoints").iterdir())] == [b"\2" * 4, b"\3" * 5]
