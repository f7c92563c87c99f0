"""The coordinator is killed wherever its workers are, alone or with some of them: another one takes over.

Where none can, the workers leave a checkpoint of that very step. Either way no step is lost or made twice.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.test_run import vf
from virtualflow.core.job_state import JobState
from virtualflow.events import STREAM, Loaded, StepDone, read_events
from virtualflow.job import launch
from virtualflow.job.folder import JobFolder, JobSpec
from virtualflow.job.output import LEAD_LOG
from virtualflow.system.home import home

JOB = Path(__file__).with_name("orphan_job.py")
STEPS = 20
IN_AN_EPOCH = [
    "before a step",
    "after a step",
    "evaluate in the loop",
    "an epoch's end",
    "evaluate",
    "predict",
    "save",
    "between epochs",
    "evaluate at the top",
]
AT_THE_END = ["after the loop", "evaluate at the end", "the end"]
PLACES = [*((place, 1) for place in IN_AN_EPOCH), *((place, 3) for place in AT_THE_END)]
ALL = [(place, epoch, dies) for place, epoch in PLACES for dies in ("", "0", "1", "02")]
SOME = [
    ("evaluate", 1, ""),
    ("evaluate", 1, "0"),
    ("evaluate in the loop", 1, "1"),
    ("before a step", 1, "02"),
    ("save", 1, "02"),  # the one that goes on alone dies, too
    ("an epoch's end", 1, "1"),
    ("predict", 1, "0"),
    ("evaluate at the top", 1, "1"),
    ("evaluate at the end", 3, "0"),
    ("the end", 3, ""),
]


def run(
    folder: Path, where: str, dies: str = "", devices: int = 3, epoch: int = 1, sharding: str = "none"
) -> subprocess.CompletedProcess[str]:
    told = told_to(folder, where, dies, epoch, sharding)
    # On a busy machine its start alone may take a minute; whoever calls this has a limit of his own.
    return vf("run", "--devices", str(devices), "--patience", "60", str(JOB), told, timeout=200)


def told_to(folder: Path, where: str, dies: str, epoch: int, sharding: str = "none") -> str:
    """The job's argument."""
    told = {"where": where, "epoch": epoch, "dies": list(dies), "marker": str(folder / "mark"), "sharding": sharding}
    return json.dumps(told)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("calm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VF_HOME", str(folder))
        finished = run(folder, "nowhere", devices=1)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.splitlines()[-1]


@pytest.mark.parametrize(("where", "epoch", "dies"), ALL if "VF_ALL_ORPHANS" in os.environ else SOME)
def test_a_killed_coordinator_costs_no_step(tmp_path: Path, calm: str, where: str, epoch: int, dies: str) -> None:
    assert_no_step_is_lost(run(tmp_path, where, dies, epoch=epoch), calm)


@pytest.mark.parametrize(("where", "epoch"), [("evaluate", 1), ("evaluate at the end", 3)])
def test_nor_does_that_of_a_job_on_one_device(tmp_path: Path, calm: str, where: str, epoch: int) -> None:
    assert_no_step_is_lost(run(tmp_path, where, devices=1, epoch=epoch), calm)


@pytest.mark.parametrize("where", ["before a step", "evaluate"])
def test_nor_does_that_of_a_job_whose_state_is_sharded(tmp_path: Path, calm: str, where: str) -> None:
    assert_no_step_is_lost(run(tmp_path, where, sharding="state"), calm)


@pytest.mark.parametrize(("where", "dies"), [("evaluate", ""), ("before a step", "02")])
def test_where_no_other_coordinator_can_be_had_a_checkpoint_is_left(
    tmp_path: Path, calm: str, where: str, dies: str
) -> None:
    spec = JobSpec.of(
        job_id="alone",
        script=str(JOB),
        arguments=(told_to(tmp_path, where, dies, epoch=1),),
        devices=("0", "1", "2"),
        patience_seconds=60.0,
        resumable=False,
    )
    folder = JobFolder(home() / "jobs" / "alone")
    folder.create(spec)
    assert launch.start(folder, launch.prepare(folder, None)).wait(200) == -signal.SIGKILL
    until_over(folder)
    assert "its coordinator is gone" in folder.read_state().reason
    folder.change(spec.changed(resumable=True))
    made = steps_of(folder)
    assert made == list(range(len(made)))
    resumed = vf("run", "--resume", "alone", timeout=200)
    assert resumed.returncode == 0, resumed.stderr
    assert f"job alone continues from step {len(made)}\n" in resumed.stderr
    assert resumed.stdout.splitlines()[-1] == calm
    assert steps_of(folder) == list(range(STEPS))


def until_over(folder: JobFolder) -> None:
    deadline = time.monotonic() + 100
    while folder.is_locked():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def steps_of(folder: JobFolder) -> list[int]:
    return [event.step for event in read_events(folder.path / STREAM) if isinstance(event, StepDone)]


def assert_no_step_is_lost(killed: subprocess.CompletedProcess[str], calm: str) -> None:
    assert killed.returncode == -9, killed.stderr
    folder = JobFolder(home() / "jobs" / killed.stdout.split()[1])
    until_over(folder)
    state = folder.read_state()
    assert state.state == JobState.DONE, f"{state.reason}\n{(folder.path / launch.LOG).read_text()}"
    assert steps_of(folder) == list(range(STEPS))
    assert not any(isinstance(event, Loaded) for event in read_events(folder.path / STREAM))  # from a checkpoint
    assert (folder.path / "logs" / LEAD_LOG).read_text().splitlines()[-1] == calm
