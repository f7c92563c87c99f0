"""A real manager in hard times: no descriptors, removed locks, coordinators that hang. No job is lost or run twice."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.manager.managed import Service, until

pytestmark = pytest.mark.timeout(400)  # a busy machine decides nothing


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path / "home", "--devices", "3", "--patience", "2")
    service.up()
    yield service
    service.close()


def test_a_job_that_ends_while_its_manager_has_no_descriptors_is_not_run_again(service: Service, calm: str) -> None:
    job = service.submit(slow=True)
    until(lambda: len(job.steps) > 3)
    limits = resource.prlimit(service.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(service.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    job.let_go()
    until(lambda: not job.folder.is_locked())
    until(lambda: "Too many open files" in service.log)  # it has looked, and could not see
    resource.prlimit(service.pid, resource.RLIMIT_NOFILE, limits)
    assert job.assert_done(calm)["launches"] == 1
    assert job.output.splitlines().count(calm) == 1


def test_a_removed_lock_holds_nobody_up_and_starts_nobody(service: Service, calm: str) -> None:
    job = service.submit(slow=True)
    until(lambda: len(job.steps) > 3)
    coordinator = job.coordinator
    (job.folder.path / "lock").unlink()
    seen = len(job.steps)
    until(lambda: len(job.steps) > seen + 2)  # meanwhile the manager has looked several times
    assert (job.view()["state"], job.coordinator) == ("RUNNING", coordinator)
    service.kill()
    service.up()  # the next one finds it as well
    assert (job.until_on(1)["launches"], job.coordinator) == (1, coordinator)
    job.let_go()
    assert job.assert_done(calm)["launches"] == 1


def test_coordinators_that_hang_are_ended_and_nobody_waits_for_them(service: Service, calm: str) -> None:
    jobs = [service.submit(slow=True) for _ in range(3)]
    for job in jobs:
        until(lambda job=job: len(job.steps) > 3)
    hung = [job.coordinator for job in jobs]
    for pid in hung:
        os.kill(pid, signal.SIGSTOP)
    jobs[0].ask("pause")
    jobs[1].ask("cancel")
    jobs[2].ask("resize", devices=1)  # nothing to tell: it is looked after anyway
    while "SIGKILL to its coordinator" not in service.log:
        service.client.get("/api/jobs")  # answered meanwhile
    assert f"SIGTERM to its coordinator, process {hung[0]}" in service.log
    jobs[0].until(lambda view: view["state"] == "PAUSED")
    assert jobs[0].folder.latest_checkpoint() is not None
    assert jobs[1].until_over()["state"] == "CANCELLED"
    jobs[0].ask("resume")
    for job in (jobs[0], jobs[2]):
        job.let_go()
        job.assert_done(calm)
