"""How much of its machine this process uses."""

from __future__ import annotations

import os
import time

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class CpuMeter:
    """Cores that all threads of this process kept busy since the last call."""

    def __init__(self) -> None:
        self._wall, self._busy = time.monotonic(), time.process_time()

    def cores(self) -> float:
        wall, busy = time.monotonic(), time.process_time()
        elapsed = wall - self._wall
        cores = (busy - self._busy) / elapsed if elapsed > 0 else 0.0
        self._wall, self._busy = wall, busy
        return round(cores, 2)


def resident_bytes() -> int:
    """Main memory that this process occupies; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0
