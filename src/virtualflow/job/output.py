"""What workers print, and who sees it: the lead's as it is, or everyone's with the device before each line."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from pathlib import Path
from typing import Any, Protocol, TextIO

from virtualflow.system import private_files


class Sink(Protocol):
    """Takes what workers print."""

    def write(self, device: str, stream: str, data: bytes, *, lead: bool) -> None: ...
    def close(self) -> None: ...


class LeadOutput:
    """Passes on what the lead worker prints, byte by byte."""

    def __init__(self) -> None:
        self._terminal = Terminal()

    def write(self, device: str, stream: str, data: bytes, *, lead: bool) -> None:
        if lead:
            self._terminal.write(stream, data)

    def close(self) -> None:
        self._terminal.close()


class Lines(ABC):
    """A sink that takes whole lines: workers' writes come in pieces."""

    def __init__(self) -> None:
        self._unfinished: dict[tuple[str, str], bytes] = {}

    @abstractmethod
    def line(self, device: str, stream: str, text: bytes, *, lead: bool) -> None: ...

    def write(self, device: str, stream: str, data: bytes, *, lead: bool) -> None:
        *lines, rest = (self._unfinished.pop((device, stream), b"") + data).split(b"\n")
        for line in lines:
            self.line(device, stream, line, lead=lead)
        if rest:
            self._unfinished[device, stream] = rest

    def close(self) -> None:
        """Pass on what did not end with a line's end."""
        for (device, stream), rest in self._unfinished.items():
            self.line(device, stream, rest, lead=False)
        self._unfinished.clear()


class AllOutput(Lines):
    """Passes on every worker's lines, each behind its device."""

    def __init__(self) -> None:
        super().__init__()
        self._terminal = Terminal()

    def line(self, device: str, stream: str, text: bytes, *, lead: bool) -> None:
        self._terminal.write(stream, f"[{device}] ".encode() + text + b"\n")

    def close(self) -> None:
        super().close()
        self._terminal.close()


class Logged:
    """Keeps what workers print in the job's folder, and passes it on to another sink."""

    def __init__(self, folder: Path, then: Sink | None = None) -> None:
        self._folder = folder
        self._then = then
        private_files.make_folder(folder)

    def write(self, device: str, stream: str, data: bytes, *, lead: bool) -> None:
        self._append(log_of(device), data)
        if lead:
            self._append(LEAD_LOG, data)
        if self._then is not None:
            try:
                self._then.write(device, stream, data, lead=lead)
            except OSError:
                self._then = None  # a closed terminal or pipe ends no job, and the log has it all

    def close(self) -> None:
        if self._then is not None:
            self._then.close()

    def _append(self, name: str, data: bytes) -> None:
        file = self._folder / name
        with contextlib.suppress(OSError):  # a full disk, or a damaged folder, ends no job
            if file.exists() and file.stat().st_size > LARGEST_LOG:
                file.replace(file.with_suffix(".log.1"))
        with contextlib.suppress(OSError), open(file, "ab", opener=private_files.opener) as log:
            log.write(data)


def log_of(device: str) -> str:
    """The name of its log: some models of accelerators have a slash in theirs."""
    return f"{device.replace('/', '-')}.log"


LEAD_LOG = "lead.log"
LARGEST_LOG = 10 * 2**20  # then it becomes NAME.log.1, in place of an older one


class Terminal:
    """Writes to this process's stdout and stderr, in a thread of its own: who does not read them holds no job up.

    Output that is more than *most_bytes* behind is left out, with a line about it; the job's log has all of it.
    """

    def __init__(self, most_bytes: int = 64 << 20) -> None:
        self._most_bytes = most_bytes
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._bytes = 0
        self._left_out = 0
        self._changed = threading.Condition()
        self._is_closed = self._is_gone = False
        self._thread: threading.Thread | None = None

    @property
    def unwritten_bytes(self) -> int:
        return self._bytes

    def write(self, stream: str, data: bytes) -> None:
        """Pass *data* on, soon. Raises OSError if the reader is gone."""
        with self._changed:
            if self._is_gone:
                raise BrokenPipeError
            if self._bytes + len(data) > self._most_bytes:
                self._left_out += len(data)
                return
            if self._left_out:
                self._put(stream, f"... {self._left_out} bytes were left out: the reader was too slow ...\n".encode())
                self._left_out = 0
            self._put(stream, data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._pass_on, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        """Return when all is written. The job is over by then, so the reader may be slow."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(0.1)  # in pieces, so that Ctrl-C comes through

    def _put(self, stream: str, data: bytes) -> None:
        self._waiting.append((stream, data))
        self._bytes += len(data)

    def _pass_on(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._is_closed:
                        return
                    self._changed.wait()
                stream, data = self._waiting.popleft()
            try:
                _emit(stream, data)
            except OSError:  # a closed terminal or pipe
                with self._changed:
                    self._is_gone = True
                    self._waiting.clear()
                return
            with self._changed:
                self._bytes -= len(data)


def _emit(stream: str, data: bytes) -> None:
    target = sys.stdout if stream == "stdout" else sys.stderr
    target.flush()
    while data:
        try:
            data = data[os.write(target.fileno(), data) :]
        except BlockingIOError:  # a pipe that another process has made non-blocking
            ready = select.poll()
            ready.register(target, select.POLLOUT)
            ready.poll()


class _LastingStream(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)


def lasting_stream(descriptor: int) -> TextIO:
    """A worker's stream to the coordinator: what is printed after that has died is lost, and the worker goes on."""
    raw = io.BufferedWriter(_LastingStream(descriptor, "w", closefd=False))
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)
