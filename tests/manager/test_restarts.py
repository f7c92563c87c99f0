"""A manager that ends, by a word or by a SIGKILL, and the next one, which takes over what it finds."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_run import VF, alive
from tests.conftest import Launcher
from tests.manager.managed import SCRIPT, Service, until

pytestmark = pytest.mark.timeout(400)  # a busy machine decides nothing


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path / "home", "--devices", "2")
    yield service
    service.close()


@pytest.fixture(scope="module")
def calm(run_job: Launcher, tmp_path_factory: pytest.TempPathFactory) -> str:
    return run_job(SCRIPT, 1, [str(tmp_path_factory.mktemp("calm"))]).digest


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
    assert "1 device(s) are free, which is not enough for its 2" in waiting.view()["reason"]
    job.let_go()
    assert job.assert_done(calm)["launches"] == 1
    assert waiting.assert_done(calm)["launches"] == 1
    assert [segment["end"] is not None for segment in service.client.get("/api/history")["segments"]] == [True] * 3


def vf(service: Service, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"VF_HOME": str(service.home)}
    return subprocess.run([*VF, *arguments], env=environment, capture_output=True, text=True, timeout=110, check=False)


def test_up_and_down_with_and_without_the_jobs(service: Service, calm: str) -> None:
    up = vf(service, "cluster", "up", "--devices", "2")
    assert up.returncode == 0, up.stderr
    assert up.stdout.startswith("manager at http://127.0.0.1:")
    assert "/login?code=" in up.stdout
    token = service.home / "cluster" / "token"
    assert token.stat().st_mode & 0o777 == (service.home / "cluster" / "jobs.sqlite").stat().st_mode & 0o777 == 0o600
    for again in (["--foreground"], []):
        refused = vf(service, "cluster", "up", "--devices", "2", *again)
        assert refused.returncode == 2
        assert "a manager runs already" in refused.stderr
        assert "Traceback" not in refused.stderr

    job = service.submit(demand=2, virtual_nodes=4, slow=True)
    until(lambda: len(job.steps) > 3)
    coordinator = job.coordinator
    down = vf(service, "cluster", "down", "--keep-jobs")
    assert down.stdout == "the manager has ended; its jobs go on\n", down.stderr
    assert alive(coordinator)
    assert "no manager runs here" in vf(service, "queue").stderr
    assert vf(service, "cluster", "up", "--devices", "2").returncode == 0
    assert (job.until_on(2)["launches"], job.coordinator) == (1, coordinator)
    service.client.post("/api/devices/0/drain")
    job.until_on(1)

    assert vf(service, "cluster", "down").stdout == "the manager has ended\n"
    assert not job.folder.is_locked()
    assert job.folder.read_state()["state"] == "QUEUED"
    assert job.folder.latest_checkpoint() is not None
    assert vf(service, "cluster", "up", "--devices", "2").returncode == 0
    assert job.until_on(1)["launches"] == 2
    assert [each["lost"] for each in service.client.get("/api/devices")] == [True, False]  # it has not come back
    job.let_go()
    job.assert_done(calm)
    assert vf(service, "cluster", "down").returncode == 0
    assert "no manager runs here" in vf(service, "cluster", "down").stderr
