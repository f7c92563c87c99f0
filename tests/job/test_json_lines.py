"""Messages as JSON and back: what was sent arrives, and nothing else is taken for a message."""

from __future__ import annotations

import pytest

from virtualflow.errors import MessageError
from virtualflow.job.json_lines import decoded, encoded
from virtualflow.job.wire_messages import FROM_WORKER, REQUESTS, FileRead, GetStatus, ModuleLoaded, ResizeJob, ShrinkJob


@pytest.mark.parametrize(
    "message",
    [
        ModuleLoaded("/a/b.py", "b", bytes(range(256))),
        FileRead("/a/not-utf-8-\udcff", "0"),
        ModuleLoaded("/a/not-utf-8-\udcff", "b", b"\xff\n\n"),
        FileRead("a line\nbreak, a backslash \\ud and \u2028", "0"),
    ],
)
def test_what_was_sent_arrives_in_one_line(message: FileRead | ModuleLoaded) -> None:
    line = encoded(message)
    assert b"\n" not in line
    assert decoded(FROM_WORKER, line) == message


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"null",
        b"nonsense",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"type": "Nobody"}',
        b'{"type": "ShrinkJob"}',
        b'{"type": "ShrinkJob", "devices": 0}',
        b'{"type": "ShrinkJob", "devices": "2"}',
        b'{"type": "ShrinkJob", "devices": 2, "more": 1}',
        b'{"type": "FileRead", "file": "\\ud800", "digest": 5}',
        b'{"type": "FileRead", "file": "\\ud800", "digest"',
        encoded(ResizeJob(2)),  # of another connection
    ],
)
def test_anything_else_is_one_clear_error(line: bytes) -> None:
    with pytest.raises(MessageError, match="not a message of VirtualFlow"):
        decoded(FROM_WORKER, line)


def test_a_message_without_fields_is_its_type() -> None:
    assert encoded(GetStatus()) == b'{"type":"GetStatus"}'
    assert decoded(REQUESTS, b' {"type": "GetStatus"} ') == GetStatus()
    assert decoded(FROM_WORKER, encoded(ShrinkJob(1))) == ShrinkJob(1)
