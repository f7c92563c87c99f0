"""What workers print, and who sees it: the lead's as it is, or everyone's with the device before each line."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Protocol, TextIO

from virtualflow.system import private_files


class Sink(Protocol):
    """Takes what workers print."""

    def write(self, device: str, stream: str, data: bytes, *, lead: bool) -> None: ...
    def close(self) -> None: ...


class LeadOutput:
    """Passes on what the lead worker prints, byte by byte."""

    def write(self, device: str, stream: str, data: bytes, *, lead: bool) -> None:
        if lead:
            _emit(stream, data)

    def close(self) -> None: ...


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

    def line(self, device: str, stream: str, text: bytes, *, lead: bool) -> None:
        _emit(stream, f"[{device}] ".encode() + text + b"\n")


class Logged:
    """Keeps what workers print in the job's folder, and passes it on to another sink."""

    def __init__(self, folder: Path, then: Sink | None = None) -> None:
        self._folder = folder
        self._then = then
        private_files.make_folder(folder)

    def write(self, device: str, stream: str, data: bytes, *, lead: bool) -> None:
        self._append(f"{device}.log", data)
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
        if file.exists() and file.stat().st_size > LARGEST_LOG:
            file.replace(file.with_suffix(".log.1"))
        with (
            contextlib.suppress(OSError),
            open(file, "ab", opener=private_files.opener) as log,
        ):  # a full disk ends no job
            log.write(data)


LEAD_LOG = "lead.log"
LARGEST_LOG = 10 * 2**20  # then it becomes NAME.log.1, in place of an older one


def _emit(stream: str, data: bytes) -> None:
    target = sys.stdout if stream == "stdout" else sys.stderr
    target.flush()
    while data:
        data = data[os.write(target.fileno(), data) :]


class _Outlasting(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)


def outlasting(descriptor: int) -> TextIO:
    """A worker's stream to the coordinator: what is printed after that has died is lost, and the worker goes on."""
    raw = io.BufferedWriter(_Outlasting(descriptor, "w", closefd=False))
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)
