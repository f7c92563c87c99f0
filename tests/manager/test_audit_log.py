"""The audit log: bounded, readable whatever lies in it, and not to be filled by who is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from virtualflow.manager import audit_log
from virtualflow.manager.audit_log import AUDIT_LOG, BURST, BURST_SECONDS, KEPT, AuditEntry, AuditLog, AuditReader


def an_entry(time: float, verb: str = "pause", token: str = "eve", outcome: str = "done") -> AuditEntry:
    return AuditEntry(time=time, token=token, role="submit", remote="10.0.0.7", verb=verb, outcome=outcome, job="a")


def test_what_was_noted_is_read_again_from_a_time_on(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    entries = [an_entry(float(time)) for time in range(5)]
    for entry in entries:
        log.note(entry)
    assert list(AuditReader(tmp_path).read()) == entries
    assert list(AuditReader(tmp_path).read(since=3.0)) == entries[3:]
    assert list(AuditReader(tmp_path / "nothing").read()) == []


def test_a_damaged_line_is_skipped_and_counted_and_a_new_writer_begins_a_line(tmp_path: Path) -> None:
    AuditLog(tmp_path).note(an_entry(1.0))
    file = tmp_path / AUDIT_LOG
    with file.open("ab") as appended:
        appended.write(b'{"time": 2.0, "token": "e\n[]\n\xff\xfe\n' + b"[" * 100_000 + b'\n{"time": 3.0, "tok')
    AuditLog(tmp_path).note(an_entry(4.0))
    reader = AuditReader(tmp_path)
    assert [entry.time for entry in reader.read()] == [1.0, 4.0]
    assert reader.damaged == 5


def test_the_log_takes_no_more_than_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "MAX_BYTES", 1000)
    log = AuditLog(tmp_path)
    for time in range(200):
        log.note(an_entry(float(time)))
    files = sorted(tmp_path.iterdir())
    assert len(files) == KEPT + 1
    assert all(file.stat().st_size < 1300 and file.stat().st_mode & 0o777 == 0o600 for file in files)
    times = [entry.time for entry in AuditReader(tmp_path).read()]
    assert times == [float(time) for time in range(200 - len(times), 200)]


def test_a_log_that_can_not_be_written_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "folder").write_text("no folder")
    AuditLog(tmp_path / "folder").note(an_entry(1.0))
    assert '"verb":"pause"' in caplog.text


def test_who_is_refused_again_and_again_does_not_push_out_what_others_did(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    for count in range(1000):
        log.note(an_entry(count / 1000, token="", outcome="refused"))
        log.note(an_entry(count / 1000, token="looker", outcome="refused"))
    log.note(an_entry(2.0))
    log.note(an_entry(3.0, token="another", outcome="refused"))
    log.note(an_entry(BURST_SECONDS + 4.0, token="", outcome="refused"))
    entries = list(AuditReader(tmp_path).read())
    assert [entry.token for entry in entries].count("") == BURST + 1
    assert [entry.token for entry in entries[-3:]] == ["eve", "another", ""]
    assert [entry.unlogged for entry in entries[-3:]] == [0, 0, 1000 - BURST]
