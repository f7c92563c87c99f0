"""Verbs with ``$VF_CLUSTER``: the manager is elsewhere, and nothing of its jobs is on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_jobs import said
from tests.conftest import Launcher
from tests.manager.managed import SCRIPT, Managed, Service, until

pytestmark = pytest.mark.timeout(400)  # a busy machine decides nothing


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    service = Service(tmp_path / "elsewhere", "--devices", "2")
    service.up()
    monkeypatch.setenv("VF_HOME", str(tmp_path / "here"))
    monkeypatch.setenv("VF_CLUSTER", (service.home / "cluster" / "address").read_text().strip())
    monkeypatch.setenv("VF_TOKEN_FILE", str(service.home / "cluster" / "token"))
    yield service
    service.close()


@pytest.fixture(scope="module")
def calm(run_job: Launcher, tmp_path_factory: pytest.TempPathFactory) -> str:
    return run_job(SCRIPT, 1, [str(tmp_path_factory.mktemp("calm"))]).digest


def test_verbs_find_jobs_elsewhere_by_name_and_a_job_goes_back_to_an_earlier_checkpoint(
    service: Service, tmp_path: Path, calm: str
) -> None:
    job = service.submit(slow=True, name="far", virtual_nodes=4, checkpoint_every=3)
    until(lambda: len(job.steps) > 7)
    for words in (["status"], ["status", "far"], ["queue"]):
        code, text = said(*words)
        assert (code, "RUNNING" in text, job.id in text) == (0, True, True), text
    assert json.loads(said("status", "far", "--json")[1])["id"] == job.id
    assert "step 1 " in said("logs", "far")[1]
    assert "elsewhere" in said("logs", "far", "--device", "0")[1]
    code, text = said("describe", job.id[:-1])
    assert (code, "RUNNING" in text) == (0, True), text
    picture = tmp_path / "timeline.png"
    assert said("timeline", "far", "-o", str(picture)) == (0, f"wrote {picture}\n")
    assert picture.stat().st_size > 1000

    code, text = said("stop", "far", "--checkpoint")
    assert (code, text) == (0, f"job {job.id} is paused: `vf resume {job.id}`\n")
    steps = [int(path.stem.removeprefix("step-")) for path in job.folder.automatic_checkpoints()]
    code, text = said("resume", "far", "--from-checkpoint", "1")
    assert (code, f"has no checkpoint of step 1. It has: {', '.join(map(str, steps))}" in text) == (2, True), text
    assert job.view()["state"] == "PAUSED"

    # Another job begins where this one was.
    begins = tmp_path / "begins.pt"
    begins.write_bytes(job.folder.automatic_checkpoints()[0].read_bytes())
    (tmp_path / "gates").mkdir()
    code, text = said(
        "submit", "--name", "second", "--from-checkpoint", str(begins), str(SCRIPT), str(tmp_path / "gates")
    )
    assert code == 0, text
    second = Managed(service, text.split()[1], tmp_path / "gates")
    assert second.until_over()["state"] == "DONE"
    assert second.said.splitlines()[-1] == calm
    assert min(second.steps) == steps[0]

    code, text = said("resume", "far", "--from-checkpoint", str(steps[0]))
    assert (code, f"job {job.id} goes on from step {steps[0]}" in text) == (0, True), text
    job.let_go()
    assert job.until_over()["state"] == "DONE"
    assert job.said.splitlines()[-1] == calm
    assert list(job.folder.checkpoints.glob("*.aside")) != []
    again = said("submit", "--from-checkpoint", str(tmp_path / "nothing.pt"), str(SCRIPT))
    assert again[0] == 2
    assert "there is no such file" in again[1]
