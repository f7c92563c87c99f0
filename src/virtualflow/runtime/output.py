"""What workers print, and who sees it: the lead's as it is, or everyone's with the device before each line."""

from __future__ import annotations

import os
import sys
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


class AllOutput:
    """Passes on every worker's lines, each behind its device."""

    def __init__(self) -> None:
        self._unfinished: dict[tuple[str, str], bytes] = {}

    def write(self, device: str, stream: str, data: bytes) -> None:
        *lines, rest = (self._unfinished.pop((device, stream), b"") + data).split(b"\n")
        for line in lines:
            _emit(stream, f"[{device}] ".encode() + line + b"\n")
        if rest:
            self._unfinished[device, stream] = rest

    def close(self) -> None:
        for (device, stream), rest in self._unfinished.items():
            _emit(stream, f"[{device}] ".encode() + rest + b"\n")
        self._unfinished.clear()


def _emit(stream: str, data: bytes) -> None:
    target = sys.stdout if stream == "stdout" else sys.stderr
    target.flush()
    while data:
        data = data[os.write(target.fileno(), data) :]
