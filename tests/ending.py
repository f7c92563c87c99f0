"""How tests end a job whose end is not what they are about."""

from __future__ import annotations

import signal
import time

from virtualflow.job import lock_holders
from virtualflow.job.folder import JobFolder


def end_job(folder: JobFolder) -> None:
    """Kill all of its processes: if its coordinator alone were killed, another one would take over."""
    deadline = time.monotonic() + 120
    while pids := lock_holders.holders(folder.lock):
        for pid in pids:
            lock_holders.send(pid, folder.lock, signal.SIGKILL)
        assert time.monotonic() < deadline, f"processes of {folder.path} do not end: {pids}"
        time.sleep(0.02)
