"""Who holds a job's lock, and how one that hangs is ended: never anybody else."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from virtualflow.job import lock_holders
from virtualflow.job.folder import JobFolder
from virtualflow.job.last_checkpoint import Turn
from virtualflow.manager.hung import SERVE, Escalation

HOLDS = "import sys, time; file = open(sys.argv[1], sys.argv[2]); print(flush=True); time.sleep(600)"
TAKES = """
import fcntl, sys
try:
    fcntl.lockf(open(sys.argv[1], "r+b"), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(7)
"""


@contextmanager
def process(lock: Path, mode: str = "a", *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """One that has the lock's file open, with *words* in its command line."""
    command = [sys.executable, "-S", "-c", HOLDS, str(lock), mode, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=lock.parent, env={"MARK": "a=b"}) as started:
        try:
            assert started.stdout is not None
            started.stdout.readline()
            yield started
        finally:
            started.kill()


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "lock"
    path.touch()
    return path


def test_only_those_who_may_write_to_the_lock_hold_it_even_after_it_was_removed(lock: Path) -> None:
    with process(lock) as runs, process(lock, "r"):
        assert lock_holders.holders(lock) == [runs.pid]
        assert lock_holders.holders_of_removed(lock) == []
        lock.unlink()
        lock.touch()
        assert lock_holders.holders_of_removed(lock) == lock_holders.holders(lock) == [runs.pid]
        assert lock_holders.command_line_of(runs.pid)[-2:] == [str(lock), "a"]
        assert lock_holders.environment_of(runs.pid)["MARK"] == "a=b"
        assert lock_holders.directory_of(runs.pid) == str(lock.parent)
    assert lock_holders.holders(lock) == []
    assert (lock_holders.command_line_of(runs.pid), lock_holders.environment_of(runs.pid)) == ([], {})


def test_a_signal_reaches_a_holder_and_nobody_else(lock: Path) -> None:
    with process(lock) as runs, process(lock, "r") as looks:
        assert not lock_holders.send(looks.pid, lock, signal.SIGKILL)
        assert lock_holders.send(runs.pid, lock, signal.SIGTERM)
        assert runs.wait() == -signal.SIGTERM
        assert looks.poll() is None
    assert not lock_holders.send(runs.pid, lock, signal.SIGTERM)


def test_a_hung_job_loses_its_coordinator_first_and_the_rest_last(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = JobFolder(tmp_path / "job")
    folder.make()
    with process(folder.lock, "a", SERVE) as coordinator, process(folder.lock) as worker:
        escalation = Escalation(folder, 10.0)
        with caplog.at_level(logging.WARNING, logger="virtualflow"):
            escalation.go_on(0.0)
            assert coordinator.wait() == -signal.SIGTERM
            escalation.go_on(9.9)
            escalation.go_on(10.0)  # SIGKILL for a coordinator that is gone by now
            escalation.go_on(29.9)
            assert worker.poll() is None
            escalation.go_on(30.0)
            assert worker.wait() == -signal.SIGKILL
        assert [record.getMessage().split(": ", 1)[1].rsplit(",", 1)[0] for record in caplog.records] == [
            "SIGTERM to its coordinator",
            "SIGKILL to what is left of it",
        ]


def test_a_coordinator_that_takes_over_from_a_hung_one_gets_time(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "job")
    folder.make()
    escalation = Escalation(folder, 10.0)
    with process(folder.lock, "a", SERVE) as hung:
        escalation.go_on(0.0)
        assert hung.wait() == -signal.SIGTERM
    escalation.go_on(10.0)
    with process(folder.lock, "a", SERVE) as successor:
        for now in (30.0, 89.9):
            escalation.go_on(now)
        assert successor.poll() is None
        escalation.go_on(90.0)
        assert successor.wait() == -signal.SIGTERM


def test_this_process_is_never_ended(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "job")
    folder.make()
    with folder.lock.open("a"):
        escalation = Escalation(folder, 1.0)
        for now in (0.0, 10.0, 20.0, 30.0):
            escalation.go_on(now)


def test_workers_that_have_lost_their_coordinator_take_turns_until_one_is_done(tmp_path: Path) -> None:
    path = tmp_path / "turn"
    path.write_bytes(b"1 another family")
    turn = Turn(path)
    assert not turn.is_over
    tried = subprocess.run([sys.executable, "-S", "-c", TAKES, str(path)], check=False)
    assert tried.returncode == 7, "another process has had its turn at the same time"
    turn.end()
    assert turn.is_over
