"""Jobs under a manager: shared devices, verbs, failures. Real processes; files say when a job may go on."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_run import alive, descendants
from tests.manager.managed import STEPS, Managed, Service, until
from virtualflow.errors import ManagerError

pytestmark = pytest.mark.timeout(400)  # a busy machine decides nothing


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("cluster"), "--devices", "4")
    service.up()
    yield service
    service.close()


@pytest.fixture
def service(shared: Service) -> Iterator[Service]:
    """A manager without jobs."""
    yield shared
    for job in shared.client.get("/api/jobs"):
        if job["ended"] is None:
            shared.client.post(f"/api/jobs/{job['id']}/cancel")
    until(lambda: all(job["ended"] for job in shared.client.get("/api/jobs")))


def script(folder: Path, body: str) -> Path:
    path = folder / "made.py"
    path.write_text(body)
    return path


def test_two_jobs_share_the_devices_and_end_with_the_bits_of_undisturbed_ones(service: Service, calm: str) -> None:
    first = service.submit(demand=4, slow=True, name="first")
    assert first.until_on(4)["virtual_nodes"] == 4  # learnt as it runs: it began on one device
    second = service.submit(demand=4, slow=True, name="second", virtual_nodes=4, expect_seconds=60.0)
    first.until_on(2)
    second.until_on(2)
    assert sorted(filter(None, service.devices().values())) == sorted([first.id, second.id] * 2)
    second.ask("priority", priority=3.0)
    second.until_on(3)
    assert "1 more" not in first.until_on(1)["reason"]
    assert "it could use 3 more devices" in first.view()["reason"]

    second.ask("resize", devices=1)  # a cap, so that the other one may have the rest
    first.until_on(3)
    second.until_on(1)
    second.let_go()
    second.assert_done(calm)
    first.until_on(4)
    first.ask("resize", devices=2)
    first.until_on(2)
    assert first.view()["cap"] == 2
    first.ask("resize", devices="auto")
    first.until_on(4)
    first.let_go()
    view = first.assert_done(calm)
    assert (view["launches"], view["failures"]) == (1, 0)
    assert view["resizes"] >= 5
    history = service.client.get("/api/history")["segments"]
    assert {segment["job"] for segment in history} >= {first.id, second.id}
    assert all(segment["end"] is not None for segment in history)


def test_a_job_waits_for_its_minimum_is_paused_resumed_and_cancelled(service: Service, calm: str) -> None:
    first = service.submit(demand=4, min=4, virtual_nodes=4, slow=True, name="first")
    first.until_on(4)
    second = service.submit(demand=2, min=2, slow=True, name="second")
    third = service.submit(slow=True, name="third")
    waiting = second.view()
    assert (waiting["state"], waiting["devices"]) == ("QUEUED", [])
    assert "the policy takes none away for it" in waiting["reason"]
    assert "1 job is ahead of it" in third.view()["reason"]
    third.ask("cancel")
    assert third.view()["state"] == "CANCELLED"

    until(lambda: len(first.steps) > 3)
    first.ask("pause")
    first.until(lambda view: view["state"] == "PAUSED")
    assert f"vf resume {first.id}" in first.view()["reason"]
    assert len(second.until_on(2)["devices"]) == 2
    first.ask("resume")
    assert first.view()["state"] == "QUEUED"
    assert "it needs 4 devices, and only 2 can be used now" in first.view()["reason"]
    second.ask("cancel")
    assert second.until_over()["state"] == "CANCELLED"
    first.until_on(4)
    first.let_go()
    assert first.assert_done(calm)["launches"] == 2


def test_scripts_that_fail_leave_their_last_words_and_are_tried_again(service: Service, tmp_path: Path) -> None:
    fails = script(
        tmp_path, "import sys\nprint('x', file=sys.stderr)\ndef f():\n    raise ValueError('no good')\nf()\n"
    )
    failing = service.submit(fails, retries=1, name="failing")
    early = service.submit(script(tmp_path / "..", "print('nothing to do')\n"), name="early")
    stubborn = service.submit(script(tmp_path, "import sys\nsys.exit('I give up')\n"), name="stubborn")
    missing = service.submit(early.folder.snapshot / "made.py", interpreter="/no/such/python", name="missing")
    view = failing.until_over()
    assert (view["state"], view["launches"]) == ("FAILED", 2)
    assert "in f\n" in view["failure"]
    assert view["reason"] == "ValueError: no good"
    assert early.until_over()["state"] == "DONE"
    assert early.output.startswith("nothing to do\nwarning: the script has ended, and it has made no Trainer")
    view = stubborn.until_over()
    assert (view["state"], stubborn.output) == ("FAILED", "I give up\n")
    assert view["reason"] == "the script ended with exit code 1; its output shows why"
    view = missing.until_over()
    assert view["state"] == "FAILED"
    assert "/no/such/python can't be started: " in view["reason"]


def test_a_coordinator_that_is_killed_costs_no_restart_and_whoever_else_is_ended_no_bit(
    service: Service, calm: str
) -> None:
    killed, stopped, alone = jobs = [service.submit(virtual_nodes=4, slow=True, demand=n) for n in (2, 1, 1)]
    for each in jobs:
        until(lambda each=each: len(each.steps) > 3)
    os.kill(dead := killed.coordinator, signal.SIGKILL)
    os.kill(stopped.coordinator, signal.SIGTERM)
    os.kill(alone.view()["workers"][0]["pid"], signal.SIGKILL)
    until(lambda: killed.coordinator_but(dead))
    killed.ask("resize", devices=1)
    assert killed.until_on(1)["launches"] == 1  # another coordinator has taken over, and the manager has found it
    for each in jobs:
        each.let_go()
    assert killed.assert_done(calm)["launches"] == 1
    assert stopped.assert_done(calm)["launches"] == 2
    view = alone.until_over()  # nobody was left who could have written a checkpoint: it began anew
    assert (view["state"], view["launches"]) == ("DONE", 2)
    assert alone.output.splitlines()[-1] == calm


def test_a_device_that_is_taken_out_and_given_back(service: Service, calm: str) -> None:
    job = service.submit(demand=4, virtual_nodes=4, slow=True)
    devices = job.until_on(4)["devices"]
    service.client.post(f"/api/devices/{devices[1]}/drain")
    assert sorted(job.until_on(3)["devices"]) == sorted({*devices} - {devices[1]})
    assert [each["name"] for each in service.client.get("/api/devices") if each["lost"]] == [devices[1]]
    service.client.post(f"/api/devices/{devices[1]}/return")
    job.until_on(4)
    job.let_go()
    job.assert_done(calm)
    with pytest.raises(ManagerError, match="there is no device 'nowhere'"):
        service.client.post("/api/devices/nowhere/drain")


def test_a_device_whose_worker_is_told_to_go_is_lost_and_the_scheduler_hears_of_it(service: Service, calm: str) -> None:
    job = service.submit(demand=2, virtual_nodes=4, slow=True)
    worker = job.until_on(2)["workers"][1]
    until(lambda: len(job.steps) > 3)
    os.kill(worker["pid"], signal.SIGTERM)
    lost = until(lambda: [each["name"] for each in service.client.get("/api/devices") if each["lost"]])
    assert lost == [worker["device"]]
    # There are two more devices in the cluster, so that it does not have to go on with fewer for long.
    job.until(lambda view: view["state"] == "RUNNING" and len(view["devices"]) == 2 and lost[0] not in view["devices"])
    service.client.post(f"/api/devices/{lost[0]}/return")
    job.let_go()
    assert job.assert_done(calm)["launches"] == 1
    assert not any(each["lost"] for each in service.client.get("/api/devices"))


def limit_files(job: Managed | None, service: Service, most: int) -> None:
    """As if the disk were full: no file of these processes can grow beyond *most* bytes."""
    pids = [service.pid] if job is None else [job.coordinator, *descendants(job.coordinator)]
    for pid in filter(alive, pids):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


def test_on_a_full_disk_jobs_go_on_and_submits_are_refused_with_the_reason(service: Service, calm: str) -> None:
    job = service.submit(demand=2, virtual_nodes=4, slow=True, checkpoint_every=20)
    job.until_on(2)
    until(lambda: len(job.steps) > 3)
    for each in (None, job):
        limit_files(each, service, 4096)
    with pytest.raises(ManagerError, match="the job was not taken in"):
        service.submit()
    job.let_go()
    view = job.until_over()
    assert (view["state"], view["launches"]) == ("DONE", 1)
    assert len(job.steps) < STEPS  # of what it has done, not all could be told
    limit_files(None, service, resource.RLIM_INFINITY)
    assert service.submit().assert_done(calm)["launches"] == 1
    records = service.home / "cluster" / "jobs.sqlite"
    with contextlib.closing(sqlite3.connect(records)) as connection:  # what could not be saved then is saved by now
        (text,) = connection.execute("SELECT record FROM jobs WHERE id=?", (job.id,)).fetchone()
    assert json.loads(text)["state"] == "DONE"
