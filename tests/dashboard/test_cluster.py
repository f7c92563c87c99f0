"""The page with a real manager or a real job behind it: submitted, resized and ended from the browser."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from virtualflow.manager.client import Client

VF = [sys.executable, "-m", "virtualflow.cli.main"]
JOB = Path(__file__).parent.parent / "cli" / "job.py"
STAGED = Path(__file__).parent.parent / "manager" / "staged_job.py"
LONG_MS = 100_000  # a busy machine takes its time to import torch


def vf(*words: str) -> str:
    done = subprocess.run([*VF, *words], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def manager(vf_home: Path) -> Iterator[Client]:
    vf("cluster", "up", "--devices", "2")
    yield Client.find()
    vf("cluster", "down")


@pytest.mark.timeout(300)
def test_submit_watch_it_resize_and_cancel(page: Any, manager: Client, tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    page.goto(vf("dashboard", "--no-open").strip())
    page.get_by_role("button", name="Submit job…").click()
    page.get_by_label("Script").fill(str(JOB))
    page.get_by_label("Arguments").fill(str(tmp_path))
    page.get_by_label("Name").fill("first")
    page.get_by_label("Devices wanted").fill("2")
    page.get_by_role("button", name="Submit", exact=True).click()
    page.get_by_text("2 / 2").first.wait_for(timeout=LONG_MS)
    first = manager.get("/api/jobs")[0]["id"]
    assert page.locator(f".box[data-job='{first}']").count() >= 1

    second = vf("submit", "--name", "second", "--priority", "5", "--demand", "1", str(JOB), str(tmp_path)).split()[1]
    page.get_by_text("1 / 2").first.wait_for(timeout=LONG_MS)  # the first has made room, without a reload
    page.locator(f".box[data-job='{second}']").first.wait_for(timeout=LONG_MS)

    page.get_by_role("button", name="Cancel…").click()
    page.get_by_role("button", name="Cancel the job").click()
    deadline = time.monotonic() + LONG_MS / 1000
    while (states := {job["name"]: job["state"] for job in manager.get("/api/jobs")})["first"] != "CANCELLED":
        assert time.monotonic() < deadline, states
        time.sleep(0.2)
    page.get_by_text("cancelled", exact=True).first.wait_for()
    (tmp_path / "slow").unlink()
    while manager.get(f"/api/jobs/{second}")["state"] != "DONE":
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.timeout(300)
def test_the_page_of_one_job_resizes_and_stops_it(page: Any, tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    command = [*VF, "run", "--dashboard", "--devices", "2", str(JOB), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        try:
            assert run.stderr is not None
            page.goto(next(line for line in run.stderr if line.startswith("dashboard: ")).split()[1])
            page.get_by_text("/ 200").first.wait_for(timeout=LONG_MS)  # of its steps
            page.locator(".device .use", has_text="% CPU").nth(1).wait_for(timeout=LONG_MS)  # both workers report
            page.get_by_role("button", name="Resize…").click()
            page.locator("#resize-dialog").get_by_role("spinbutton").fill("1")
            page.get_by_role("button", name="Resize", exact=True).click()
            page.get_by_text("resize: 1 device").first.wait_for(timeout=LONG_MS)  # among its events
            page.get_by_role("button", name="Stop…").click()
            page.get_by_role("button", name="Stop the job").click()
            assert run.wait(LONG_MS / 1000) == 0
        finally:
            run.kill()


@pytest.mark.timeout(300)
def test_the_grid_of_cells_is_live(page: Any, vf_home: Path, tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    command = [*VF, "run", "--dashboard", "--devices", "2", str(STAGED), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        try:
            assert run.stderr is not None
            page.goto(next(line for line in run.stderr if line.startswith("dashboard: ")).split()[1])
            cells = page.locator("#cells td[data-device]")
            cells.nth(3).wait_for(timeout=LONG_MS)
            assert [cell.inner_text() for cell in cells.all()] == ["0", "0", "1", "1"]  # a pipeline of two
            job = vf("status", "--json")
            assert json.loads(job)[0]["cells"] == [["0"] * 4, ["0"] * 4, ["1"] * 4, ["1"] * 4]
            vf("resize", json.loads(job)[0]["id"], "1")
            page.locator("#cells td[data-device='1']").first.wait_for(state="detached", timeout=LONG_MS)
            assert [cell.inner_text() for cell in cells.all()] == ["0"] * 4
            page.get_by_role("button", name="Stop…").click()
            page.get_by_role("button", name="Stop the job").click()
            assert run.wait(LONG_MS / 1000) == 0
        finally:
            run.kill()
