"""The life of a job as a user meets it: real commands, real processes, real signals."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_run import VF, alive, descendants, vf
from virtualflow.cli.main import main
from virtualflow.errors import LaunchError
from virtualflow.events import STREAM, Loaded, Regrouped, StepDone, read_events
from virtualflow.job import control
from virtualflow.job.folder import JobFolder
from virtualflow.job.wire_messages import ResizeJob

SCRIPT = Path(__file__).with_name("job.py")
STEPS = 200


class Job:
    """A job in the background, held back until it is let go."""

    def __init__(self, folder: Path, *options: str, hold: str = "slow") -> None:
        self.folder = folder
        folder.mkdir()
        self.hold(hold)
        started = vf("run", "--detach", *options, str(SCRIPT), str(folder))
        assert started.returncode == 0, started.stderr
        self.id = started.stdout.split()[1]
        assert started.stdout == f"job {self.id}\n"
        self.coordinator = coordinator_of(self.id)

    def hold(self, name: str) -> None:
        (self.folder / name).touch()

    def let_go(self, name: str = "slow") -> None:
        (self.folder / name).unlink()

    @property
    def path(self) -> Path:
        return JobFolder.of(self.id).path

    def status(self) -> dict[str, Any]:
        code, text = said("status", self.id, "--json")
        assert code == 0, text
        described: dict[str, Any] = json.loads(text)
        return described

    def until(self, condition: Callable[[dict[str, Any]], bool], seconds: float = 60) -> dict[str, Any]:
        """The first status that fulfils *condition*, read where ``vf status`` reads it."""
        deadline = time.monotonic() + seconds
        while not condition(state := JobFolder.of(self.id).read_state()):
            assert time.monotonic() < deadline, state
            time.sleep(0.02)
        return state

    def until_step(self, step: int) -> None:
        deadline = time.monotonic() + 60
        while not any(done.step >= step for done in self.steps):
            assert time.monotonic() < deadline
            time.sleep(0.02)

    @property
    def events(self) -> list[Any]:
        stream = self.path / STREAM
        return list(read_events(stream)) if stream.exists() else []

    @property
    def steps(self) -> list[StepDone]:
        return [event for event in self.events if isinstance(event, StepDone)]

    def finish(self, *options: str) -> str:
        """Let the job run to its end, from a checkpoint; return the last line it prints."""
        self.let_go()
        resumed = vf("run", "--resume", self.id, *options)
        assert resumed.returncode == 0, resumed.stderr
        assert resumed.stdout.startswith(f"job {self.id}\n")
        return resumed.stdout.splitlines()[-1]

    def assert_no_step_was_lost_or_done_twice(self) -> None:
        """Over everything that the job's runs have told, and each run began where the last one ended."""
        assert [done.step for done in self.steps] == list(range(STEPS))
        assert [event.step for event in self.events if isinstance(event, Loaded)] != []


def coordinator_of(job_id: str) -> int:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"virtualflow.job.serve" in words and job_id.encode() in words:
            return int(folder.name)
    raise AssertionError(f"nobody runs job {job_id}")


def wait_for_end(pids: list[int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while left := [pid for pid in pids if alive(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def one(*options: str, **gates: str) -> Job:
        jobs.append(Job(tmp_path / f"folder-{len(jobs)}", *options, **gates))
        return jobs[-1]

    yield one
    for job in jobs:
        with contextlib.suppress(AssertionError):
            os.kill(coordinator_of(job.id), signal.SIGKILL)


def test_a_job_is_resized_stopped_and_resumed_and_ends_as_if_nothing_had_happened(
    start: Callable[..., Job], calm: str
) -> None:
    job = start("--devices", "2")
    running = job.until(lambda state: state["state"] == "RUNNING")
    before = {worker["device"]: worker["pid"] for worker in running["workers"]}
    job.until_step(1)
    state = job.status()
    assert (state["id"], state["state"], state["generation"], state["virtual_nodes"]) == (job.id, "RUNNING", 0, 4)
    assert state["step"] >= 1
    assert sorted(node for worker in state["workers"] for node in worker["virtual_nodes"]) == [0, 1, 2, 3]
    assert all(alive(worker["pid"]) for worker in state["workers"])
    assert [each["id"] for each in json.loads(vf("status", "--json").stdout)] == [job.id]

    assert vf("resize", job.id, "4", "--wait").returncode == 0
    for devices in (4, 3, 1, 2):
        assert said("resize", job.id, str(devices), "--wait") == (0, f"job {job.id} runs on {devices} device(s)\n")
        state = job.status()
        assert (state["state"], len(state["workers"])) == ("RUNNING", devices)
        assert sorted(node for worker in state["workers"] for node in worker["virtual_nodes"]) == [0, 1, 2, 3]
        kept = {worker["device"]: worker["pid"] for worker in state["workers"]}
        assert kept["0"] == before["0"]  # who stays is not restarted
    assert (state["resizes"], state["failures"]) == (4, 0)

    for odd in (-4092, 0):
        with pytest.raises(LaunchError, match="a job needs at least one device"):
            control.ask(JobFolder.of(job.id), ResizeJob(odd))
    refused = vf("resize", job.id, "5")
    assert refused.returncode == 2
    assert "4 virtual nodes" in refused.stderr
    assert "step 1 " in vf("logs", job.id).stdout
    shown = vf("status", job.id).stdout  # on a narrow screen
    assert job.id in shown
    assert "RUNNING" in shown

    stopped = vf("stop", job.id, "--checkpoint")
    assert stopped.returncode == 0, stopped.stderr
    state = job.status()
    assert state["state"] == "CANCELLED"
    assert state["step"] < STEPS
    for options, what in (
        (["train.py"], "the script"),
        (["--audit"], "--audit"),
        (["--threads-per-device", "2"], "--th"),
    ):
        code, told = said("run", "--resume", job.id, *options)
        assert code == 2
        assert what in told
    assert job.finish("--devices", "3") == calm
    assert len(json.loads((job.path / "job.json").read_text())["devices"]) == 3
    job.assert_no_step_was_lost_or_done_twice()
    state = job.status()
    assert (state["state"], state["resizes"]) == ("DONE", 4)
    assert said("logs", job.id)[1].splitlines()[-1] == calm
    assert "there is nothing left to do" in said("run", "--resume", job.id)[1]
    assert vf("clean").stdout.startswith("nothing to remove")  # it has ended just now
    assert vf("clean", "--older-than", "0", "--yes").stdout.endswith(f"removed job {job.id}\n")
    assert said("status", "--json") == (0, "[]\n")


def test_a_killed_coordinator_leaves_no_process_and_a_checkpoint_of_that_very_step(
    start: Callable[..., Job], calm: str
) -> None:
    job = start("--devices", "2")
    job.until_step(3)
    family = descendants(job.coordinator)
    assert len(family) >= 1 + 2  # fork server, workers
    os.kill(job.coordinator, signal.SIGKILL)
    wait_for_end(family, 15)
    (checkpoint,) = job.path.glob("checkpoints/*")
    assert checkpoint.name == f"step-{len(job.steps):09d}.pt"
    state = job.status()
    assert state["state"] == "FAILED"
    assert "coordinator is gone" in state["reason"]
    told = said("status", job.id)[1]
    assert "FAILED" in told
    assert "coordinator is gone" in told
    assert f"`vf run --resume {job.id}` goes on from step {len(job.steps)}" in told
    assert job.finish() == calm
    job.assert_no_step_was_lost_or_done_twice()


def test_a_coordinator_that_is_told_to_go_leaves_a_checkpoint(start: Callable[..., Job], calm: str) -> None:
    job = start("--devices", "2")
    job.until_step(3)
    family = descendants(job.coordinator)
    os.kill(job.coordinator, signal.SIGTERM)
    wait_for_end([job.coordinator, *family], 30)
    assert job.status()["state"] == "CANCELLED"
    assert (job.path / "checkpoints" / f"step-{len(job.steps):09d}.pt").exists()
    # In the background again: at once, it is known to be starting.
    resumed = vf("run", "--resume", job.id, "--detach")
    assert resumed.returncode == 0, resumed.stderr
    assert job.status()["state"] in ("STARTING", "RUNNING")
    worker = job.until(lambda state: state["state"] == "RUNNING")["workers"][1]["pid"]
    # A worker that is told to go leaves, and the job goes on without it.
    os.kill(worker, signal.SIGTERM)
    state = job.until(lambda state: state["state"] == "RUNNING" and len(state["workers"]) == 1)
    wait_for_end([worker], 15)
    assert (state["workers"][0]["virtual_nodes"], state["failures"]) == ([0, 1, 2, 3], 0)
    job.let_go()
    job.until(lambda state: state["state"] == "DONE")
    assert said("logs", job.id)[1].splitlines()[-1] == calm
    assert [event.cause for event in job.events if isinstance(event, Regrouped)] == ["resize"]
    job.assert_no_step_was_lost_or_done_twice()


def said(*arguments: str) -> tuple[int, str]:
    """The exit code and the words of a verb, called in this process because there are so many of them."""
    words = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(words), redirect_stderr(words):
        patch.setattr("sys.argv", ["vf", *arguments])
        patch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as end:  # anything else would have been a traceback
            main()
    assert end.value.code in (0, 1, 2, None)
    return int(end.value.code or 0), words.getvalue()


def all_say(job: str) -> dict[str, tuple[int, str]]:
    """What every verb says about a job."""
    return {
        "status": said("status", job),
        "status --json": said("status", job, "--json"),
        "logs": said("logs", job),
        "clean": said("clean", job),
        "resize 9": said("resize", job, "9"),
        "resize 0": said("resize", job, "0"),
        "resume": said("run", "--resume", job),
        "timeline": said("timeline", job, "-o", "timeline.png"),
        "verify": said("verify", job, job),
    }


def test_every_verb_has_a_clear_answer_whatever_the_job_is_doing(
    start: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    job = start("--devices", "2", hold="hold-starting")
    told = all_say(job.id)
    assert_it_runs(told, "STARTING")
    assert told["resize 9"][0] == 0  # nobody knows yet how many virtual nodes there are
    assert told["timeline"][0] == told["verify"][0] == 2

    job.hold("hold-joining")
    job.hold("slow")
    job.let_go("hold-starting")
    # The resize that came too early has become one to as many devices as there is work for.
    assert job.until(lambda state: state["state"] == "RESIZING")["wanted"] == ["0", "1", "2", "3"]
    job.until_step(1)
    told = all_say(job.id)
    assert_it_runs(told, "RESIZING")
    assert "at most that many devices, not 9" in told["resize 9"][1]
    waiting = subprocess.Popen([*VF, "resize", job.id, "3", "--wait"], stderr=subprocess.PIPE, text=True)
    job.until(lambda state: len(state["wanted"]) == 3)
    code, text = said("resize", job.id, "2")
    assert (code, text.startswith(f"job {job.id} goes from ")) == (0, True), text
    job.until(lambda state: state["state"] == "RUNNING")
    assert "is to run on 2 devices by now, not on 3" in waiting.communicate(timeout=60)[1]
    told = all_say(job.id)
    assert_it_runs(told, "RUNNING")
    assert told["timeline"][0] == told["verify"][0] == 0

    job.hold("hold-step")
    stopping = subprocess.Popen([*VF, "stop", job.id, "--checkpoint"], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while "is being stopped" not in said("resize", job.id, "2")[1]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert_it_runs(all_say(job.id), "RUNNING")
    job.let_go("hold-step")
    assert stopping.communicate(timeout=60)[0].startswith(f"job {job.id} has ended\n`vf run --resume {job.id}` goes on")

    assert job.status()["state"] == "CANCELLED"
    for verb in (["resize", job.id, "2"], ["stop", job.id]):
        assert said(*verb) == (2, f"error: job {job.id} is not running: its state is CANCELLED\n")
    for name, (code, text) in all_say("no-such-job").items():
        assert code == 2, name
        assert "there is no job 'no-such-job'" in text or "no run 'no-such-job'" in text or name == "resize 0"


def assert_it_runs(told: dict[str, tuple[int, str]], state: str) -> None:
    assert told["status"][0] == 0
    assert state in told["status"][1]
    assert json.loads(told["status --json"][1])["state"] == state
    assert told["logs"][0] == 0
    for verb, message in (("clean", "is running"), ("resume", "is running"), ("resize 0", "at least one device")):
        assert told[verb][0] == 2
        assert message in told[verb][1]
