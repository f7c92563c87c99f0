"""What a worker does when its coordinator has died: it finds the next one, or starts it.

A successor owns the job's lock, which it can only inherit: from a worker, since no other process may take it as long as
any of the job lives. One worker at a time is elected, by a lock of its own, to start one; a third lock, the
coordinator's, makes sure that there are never two.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

from virtualflow.job import control, lock_holders
from virtualflow.job.folder import JobFolder
from virtualflow.job.launch import LOG
from virtualflow.job.spec import WorkerSpec
from virtualflow.system import private_files
from virtualflow.system.processes import MARKER

SEARCH_SECONDS = 60.0  # or the patience, if that is longer; training goes on meanwhile
LOOK_SECONDS = 0.05
MAX_STARTS = 3
TAKES_OVER = "--takes-over"  # in a successor's command line


class SuccessorSearch:
    """Finds the coordinator that takes over, by its socket in the job's folder."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._folder = JobFolder(Path(spec.job_folder))
        self._device = spec.device
        self._seconds = max(spec.patience_seconds, SEARCH_SECONDS)
        self._directory = os.getcwd()  # before the script changes it

    def find(self) -> socket.socket | None:
        """A connection to the next coordinator; None, with a line in the job's log, if none is to be had."""
        deadline, starts, is_elected = time.monotonic() + self._seconds, 0, False
        started: subprocess.Popen[bytes] | None = None
        with contextlib.ExitStack() as owned:
            while time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    return control.connect(self._folder, control.SUCCESSION)
                with contextlib.suppress(OSError):  # no descriptor is left, for instance: others may be given back
                    if (lock := lock_holders.own_descriptor(self._folder.lock)) is None:
                        return None  # not the job's own process, so that no successor could own the job
                    is_elected = is_elected or self._stand_for_election(owned)
                    is_alone = (started is None or started.poll() is not None) and not self._folder.is_coordinated()
                    if is_elected and is_alone:
                        if starts == MAX_STARTS:
                            break
                        starts += 1
                        started = self._start(lock)
                time.sleep(LOOK_SECONDS)
        self._log(f"no other coordinator was there within {self._seconds:.0f} s ({starts} started by this worker)")
        return None

    def _stand_for_election(self, owned: contextlib.ExitStack) -> bool:
        try:
            descriptor = os.open(self._folder.path / "election", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # no child of this process has it, too
        except OSError:
            os.close(descriptor)
            return False
        owned.callback(os.close, descriptor)
        return True

    def _start(self, lock: int) -> subprocess.Popen[bytes] | None:
        # As the fork server was started, whatever the script has changed since.
        environment = lock_holders.environment_of(os.getpid())
        marker = environment.pop(MARKER, "")
        command = [sys.executable, "-m", "virtualflow.job.serve", self._folder.path.name, TAKES_OVER]
        try:
            with open(self._folder.path / LOG, "ab", opener=private_files.opener) as log:
                return subprocess.Popen(
                    [*command, str(self._folder.path), str(lock), marker],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self._directory,
                    env=environment,
                    pass_fds=[lock],
                    start_new_session=True,
                )
        except OSError as error:
            self._log(f"no other coordinator could be started: {error}")
            return None

    def _log(self, what: str) -> None:
        text = f"{datetime.now():%H:%M:%S} device {self._device}: the coordinator is gone, and {what}\n"
        with contextlib.suppress(OSError), open(self._folder.path / LOG, "a", opener=private_files.opener) as log:
            log.write(text)


def is_successor(pid: int, folder: str) -> bool:
    """Whether a process was started to take over the job of *folder*."""
    words = lock_holders.command_line_of(pid)
    return TAKES_OVER in words and folder in words
