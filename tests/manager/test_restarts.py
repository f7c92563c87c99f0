"""A manager that ends, by a word or by a SIGKILL, and the next one, which takes over what it finds."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_run import VF, alive
from tests.manager.managed import STEPS, Managed, Service, until
from virtualflow.manager.service import PORT

pytestmark = [
    pytest.mark.timeout(400),  # a busy machine decides nothing
]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path / "home", "--devices", "2")
    yield service
    service.close()


def holds_the_lock(path: Path, pid: int) -> bool:
    """Whether *pid* has the file open, and somebody a lock on it."""
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            pass
    return any(each.resolve() == path.resolve() for each in Path(f"/proc/{pid}/fd").iterdir())


def test_jobs_run_on_while_their_manager_is_dead_and_the_next_one_takes_them_over(service: Service, calm: str) -> None:
    service.up()
    job, ended = service.submit(slow=True), service.submit(slow=True)
    waiting = service.submit(demand=2, min=2, name="waiting")
    until(lambda: len(job.steps) > 3)
    until(lambda: len(ended.steps) > 3)
    coordinator = job.coordinator
    service.kill()
    assert alive(coordinator)
    ended.let_go()  # nobody watches it end
    until(lambda: not ended.folder.is_locked())
    service.up()
    view = job.until_on(1)
    assert (job.coordinator, view["launches"]) == (coordinator, 1)
    assert holds_the_lock(job.folder.path / "lock", coordinator)
    assert ended.assert_done(calm)["launches"] == 1
    assert waiting.view()["state"] == "QUEUED"
    assert "it needs 2 devices, and only 1 can be used now" in waiting.view()["reason"]
    job.let_go()
    assert job.assert_done(calm)["launches"] == 1
    assert waiting.assert_done(calm)["launches"] == 1
    assert [segment["end"] is not None for segment in service.client.get("/api/history")["segments"]] == [True] * 3


def vf(service: Service, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"VF_HOME": str(service.home)}
    return subprocess.run([*VF, *arguments], env=environment, capture_output=True, text=True, timeout=300, check=False)


def down(service: Service, *options: str) -> str:
    ended = vf(service, "cluster", "down", *options)
    return ended.stdout + ended.stderr


@dataclass(frozen=True)
class UpAndDown:
    """A manager and its one job: what was to be seen each time that the manager had ended, and was started again."""

    up: subprocess.CompletedProcess[str]
    modes: set[int]  # of the files that nobody else may read
    refused: list[subprocess.CompletedProcess[str]]  # a second manager, in the foreground and in the background
    coordinator: int
    down_keeping: str
    queue_without: str
    lived_on: bool
    kept_launches: int
    kept_coordinator: int
    down: str
    stopped_state: str
    was_locked: bool
    checkpoint: Path | None
    launches: int
    lost: list[bool]
    job: Managed
    down_twice: tuple[str, str]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpAndDown]:
    service = Service(tmp_path_factory.mktemp("up-and-down"), "--devices", "2")
    try:
        yield up_and_down(service)
    finally:
        service.close()


def up_and_down(service: Service) -> UpAndDown:
    facts: dict[str, Any] = {"up": vf(service, "cluster", "up", "--devices", "2")}
    files = [service.home / "cluster" / name for name in ("token", "jobs.sqlite")]
    facts["modes"] = {file.stat().st_mode & 0o777 for file in files}
    facts["refused"] = [vf(service, "cluster", "up", "--devices", "2", *how) for how in (["--foreground"], [])]
    facts["job"] = job = service.submit(demand=2, virtual_nodes=4, slow=True)
    until(lambda: len(job.steps) > 3)
    facts["coordinator"] = job.coordinator

    facts["down_keeping"] = down(service, "--keep-jobs")
    facts["lived_on"] = alive(facts["coordinator"])
    facts["queue_without"] = vf(service, "queue").stderr
    vf(service, "cluster", "up", "--devices", "2")
    facts["kept_launches"], facts["kept_coordinator"] = job.until_on(2)["launches"], job.coordinator
    service.client.post("/api/devices/0/drain")
    job.until_on(1)

    facts["down"] = down(service)
    facts["was_locked"], facts["stopped_state"] = job.folder.is_locked(), job.folder.read_state().state
    facts["checkpoint"] = job.folder.latest_checkpoint()
    vf(service, "cluster", "up", "--devices", "2")
    facts["launches"] = job.until_on(1)["launches"]
    facts["lost"] = [each["lost"] for each in service.client.get("/api/devices")]
    job.let_go()
    job.until_over()
    facts["down_twice"] = down(service), down(service)
    return UpAndDown(**facts)


def test_a_manager_that_is_started_says_where_it_is(story: UpAndDown) -> None:
    assert story.up.returncode == 0, story.up.stderr
    (port,) = re.findall(r"^manager at http://127\.0\.0\.1:(\d+)$", story.up.stdout, re.M)
    assert f"\ndashboard: http://127.0.0.1:{port}/login?code=" in story.up.stdout
    assert f"\nfrom another machine, first: ssh -L {port}:127.0.0.1:{port} " in story.up.stdout


def test_its_port_is_the_usual_one_or_it_says_that_another_was_taken(story: UpAndDown) -> None:
    is_usual = f"manager at http://127.0.0.1:{PORT}\n" in story.up.stdout
    assert is_usual != (f"port {PORT} is in use by something else" in story.up.stdout)


def test_token_and_records_are_for_nobody_else(story: UpAndDown) -> None:
    assert story.modes == {0o600}


def test_a_second_manager_is_refused(story: UpAndDown) -> None:
    for refused in story.refused:
        assert refused.returncode == 2
        assert "a manager runs already" in refused.stderr
        assert "Traceback" not in refused.stderr


def test_jobs_that_are_kept_go_on_without_a_manager_and_under_the_next_one(story: UpAndDown) -> None:
    assert story.down_keeping == "the manager has ended; its jobs keep running\n"
    assert story.lived_on
    assert (story.kept_launches, story.kept_coordinator) == (1, story.coordinator)


def test_without_a_manager_there_is_no_queue(story: UpAndDown) -> None:
    assert "no manager runs here" in story.queue_without


def test_a_manager_that_ends_stops_its_jobs_with_a_checkpoint(story: UpAndDown) -> None:
    assert story.down == "the manager has ended\n"
    assert (story.was_locked, story.stopped_state) == (False, "QUEUED")
    assert story.checkpoint is not None


def test_a_job_that_was_stopped_with_its_manager_goes_on_under_the_next_one(story: UpAndDown, calm: str) -> None:
    assert story.launches == 2
    assert story.job.output.splitlines()[-1] == calm
    assert story.job.steps == list(range(STEPS))


def test_a_device_that_was_taken_out_does_not_come_back_with_the_next_manager(story: UpAndDown) -> None:
    assert story.lost == [True, False]


def test_only_a_manager_that_runs_can_be_ended(story: UpAndDown) -> None:
    ended, again = story.down_twice
    assert ended == "the manager has ended\n"
    assert "no manager runs here" in again
