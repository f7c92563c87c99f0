"""What workers print, and who sees it: the lead's as it is, or everyone's with the device before each line."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from typing import Protocol


class Sink(Protocol):
    """Takes what workers print."""

    def write(self, device: str, stream: str, data: bytes) -> None: ...


class LeadOutput:
    """Passes on what the lead worker prints, byte by byte."""

    def __init__(self, lead: str) -> None:
        self._lead = lead

    def write(self, device: str, stream: str, data: bytes) -> None:
        if device == self._lead:
            _emit(stream, data)


class Lines(ABC):
    """A sink that takes whole lines: workers' writes come in pieces."""

    def __init__(self) -> None:
        self._unfinished: dict[tuple[str, str], bytes] = {}

    @abstractmethod
    def line(self, device: str, stream: str, text: bytes) -> None: ...

    def write(self, device: str, stream: str, data: bytes) -> None:
        *lines, rest = (self._unfinished.pop((device, stream), b"") + data).split(b"\n")
        for line in lines:
            self.line(device, stream, line)
        if rest:
            self._unfinished[device, stream] = rest

    def close(self) -> None:
        """Pass on what did not end with a line's end."""
        for (device, stream), rest in self._unfinished.items():
            self.line(device, stream, rest)
        self._unfinished.clear()


class AllOutput(Lines):
    """Passes on every worker's lines, each behind its device."""

    def line(self, device: str, stream: str, text: bytes) -> None:
        _emit(stream, f"[{device}] ".encode() + text + b"\n")


def _emit(stream: str, data: bytes) -> None:
    target = sys.stdout if stream == "stdout" else sys.stderr
    target.flush()
    while data:
        data = data[os.write(target.fileno(), data) :]
