"""One job, whose coordinator is killed again and again, with whatever else there is: it ends with the same bits."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.test_jobs import STEPS, Job, start, until_taken_over, wait_for_end  # noqa: F401, a fixture
from tests.cli.test_run import alive
from virtualflow.job import control, lock_holders
from virtualflow.job.folder import JobFolder
from virtualflow.job.wire_messages import GetStatus, ResizeJob

pytestmark = pytest.mark.timeout(400)  # a busy machine decides nothing


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_job_outlives_any_number_of_coordinators(start: Callable[..., Job], calm: str) -> None:  # noqa: F811
    job = start("--devices", "3", "--patience", "60")
    folder = JobFolder(job.path)
    seen: set[int] = set()
    job.until_step(1)

    def workers() -> dict[str, int]:
        status = control.ask(folder, GetStatus())
        seen.update(lock_holders.holders(folder.lock))
        return {worker.device: worker.pid for worker in status.workers}

    def strike(devices: int, *others: int) -> None:
        """Kill the coordinator, with *others*; the next one has the job on *devices* again."""
        kill(job.coordinator, *others)
        until_taken_over(job)
        job.until(lambda state: state.state == "RUNNING" and len(state.workers) == devices)

    server = parent(workers()["0"])
    strike(3)
    strike(3, workers()["0"])  # the lead
    strike(3, *(pid for device, pid in workers().items() if device != "0"))  # all that have been there from the start
    control.ask(folder, ResizeJob(2))
    strike(2)
    control.ask(folder, ResizeJob(4))
    strike(4)
    strike(4, server)
    strike(4, workers()["1"])  # whose end no server reports
    workers()
    job.let_go()
    job.until(lambda state: state.state == "DONE")
    assert (folder.path / "logs" / "lead.log").read_text().splitlines()[-1] == calm
    assert [done.step for done in job.steps] == list(range(STEPS))
    wait_for_end([pid for pid in seen if alive(pid)])


def test_a_successor_that_is_killed_before_it_has_taken_over_is_followed_by_another(
    start: Callable[..., Job],  # noqa: F811
    calm: str,
) -> None:
    job = start("--devices", "2", "--patience", "60")
    job.until_step(1)
    folder = JobFolder(job.path)
    (stopped,) = [w.pid for w in control.ask(folder, GetStatus()).workers if w.device == "1"]
    os.kill(stopped, signal.SIGSTOP)  # the successor waits for it
    kill(job.coordinator)
    first = second = job.coordinator
    while first == job.coordinator or not (folder.path / control.SUCCESSION).exists():
        first = next((pid for pid in lock_holders.holders(folder.lock) if is_coordinator(pid)), first)
    kill(first)
    while second in (first, job.coordinator):
        second = next((pid for pid in lock_holders.holders(folder.lock) if is_coordinator(pid)), second)
    os.kill(stopped, signal.SIGCONT)
    until_taken_over(job)
    job.let_go()
    job.until(lambda state: state.state == "DONE")
    assert (folder.path / "logs" / "lead.log").read_text().splitlines()[-1] == calm
    assert [done.step for done in job.steps] == list(range(STEPS))


def is_coordinator(pid: int) -> bool:
    return "virtualflow.job.serve" in lock_holders.command_line_of(pid)
