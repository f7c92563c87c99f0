"""What workers print: passed on in order, whole, and never at the cost of the job."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.manager.managed import until
from virtualflow.job.output import AllOutput, Logged, Terminal


class Pipe:
    """Stands for this process's stdout, and can be read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reader, writer = os.pipe()
        self._writer = os.fdopen(writer, "w")
        monkeypatch.setattr(sys, "stdout", self._writer)

    def close(self) -> None:
        self._writer.close()

    def read(self) -> bytes:
        """All that comes until it is closed."""
        with os.fdopen(self.reader, "rb") as file:
            return file.read()

    def rest(self) -> bytes:
        self.close()
        return self.read()


def test_output_that_nobody_reads_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = Pipe(monkeypatch)
    terminal = Terminal()
    line = b"x" * 1023 + b"\n"
    for _ in range(2000):  # more than a pipe takes: this would wait for ever
        terminal.write("stdout", line)
    read = 0
    while read < 2000 * len(line):
        read += len(os.read(pipe.reader, 1 << 20))
    terminal.close()
    assert pipe.rest() == b""


def test_what_is_too_far_behind_is_left_out_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = Pipe(monkeypatch)
    terminal = Terminal(most_bytes=100_000)
    for _ in range(20):
        terminal.write("stdout", b"y" * 9_999 + b"\n")
    # The pipe has taken its 64 KiB, and the terminal no more than it may: 200,000 bytes are more than both.
    with ThreadPoolExecutor() as pool:
        read = pool.submit(pipe.read)
        until(lambda: not terminal.unwritten_bytes)
        terminal.write("stdout", b"the end\n")
        terminal.close()
        pipe.close()
        assert read.result().endswith(b"bytes were left out: the reader was too slow ...\nthe end\n")


def test_a_reader_that_is_gone_is_told_to_whoever_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = Pipe(monkeypatch)
    os.close(pipe.reader)
    terminal = Terminal()
    terminal.write("stdout", b"z")

    def is_refused() -> bool:
        try:
            terminal.write("stdout", b"z")
        except BrokenPipeError:
            return True
        return False

    until(is_refused)
    terminal.close()
    sys.stdout.close()


def test_lines_of_all_devices_come_out_before_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = Pipe(monkeypatch)
    output = AllOutput()
    output.write("0", "stdout", b"one\ntw", lead=True)
    output.write("1", "stdout", b"un\n", lead=False)
    output.write("0", "stdout", b"o", lead=True)
    output.close()
    assert pipe.rest() == b"[0] one\n[1] un\n[0] two\n"


@pytest.mark.parametrize("damage", ["directory", "fifo", "rotated is a directory"])
def test_a_damaged_log_ends_no_job(tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("virtualflow.job.output.LARGEST_LOG", 3)
    logged = Logged(tmp_path)
    if damage == "directory":
        (tmp_path / "0.log").mkdir()
    elif damage == "fifo":
        os.mkfifo(tmp_path / "0.log")
    else:
        (tmp_path / "lead.log.1").mkdir()
    for _ in range(3):
        logged.write("0", "stdout", b"hello\n", lead=True)
    logged.close()
    assert (tmp_path / "lead.log").read_bytes().endswith(b"hello\n")


def test_a_device_with_a_slash_in_its_name_has_a_log_too(tmp_path: Path) -> None:
    Logged(tmp_path / "logs").write("AMD Instinct MI250X / MI250:0", "stdout", b"here\n", lead=False)
    assert [path.read_bytes() for path in (tmp_path / "logs").iterdir()] == [b"here\n"]
