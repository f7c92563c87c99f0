"""SIGTERM as Slurm, Kubernetes and a cloud send it, and a stop for whose checkpoint there is no room."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.test_jobs import SCRIPT, STEPS, wait_for_end
from tests.cli.test_run import VF, descendants, vf
from virtualflow.events import STREAM, StepDone, read_events
from virtualflow.job.folder import JobFolder

pytestmark = pytest.mark.timeout(400)  # a busy machine decides nothing


def workers(job: str) -> list[int]:
    return [worker.pid for worker in JobFolder.of(job).read_state().workers]


@pytest.mark.parametrize(
    "targets",
    [
        pytest.param(lambda run, job: [run], id="vf run"),  # Kubernetes
        pytest.param(lambda run, job: [run, *descendants(run)], id="every process"),  # Slurm
        pytest.param(lambda run, job: workers(job), id="the workers"),
    ],
)
def test_a_job_that_is_told_to_end_is_not_complete(
    tmp_path: Path, calm: str, targets: Callable[[int, str], list[int]]
) -> None:
    (tmp_path / "slow").touch()
    command = [*VF, "run", "--devices", "2", str(SCRIPT), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        assert run.stdout is not None
        job = run.stdout.readline().split()[1]
        next(line for line in run.stdout if line.startswith("step 3 "))
        family = descendants(run.pid)
        for pid in targets(run.pid, job):
            os.kill(pid, signal.SIGTERM)
        shown = run.stdout.read()
        assert run.wait(120) == 128 + signal.SIGTERM, shown
    wait_for_end(family)
    folder = JobFolder.of(job)
    steps = [event.step for event in read_events(folder.path / STREAM) if isinstance(event, StepDone)]
    assert f"interrupted: all workers have ended. `vf run --resume {job}` continues from step {len(steps)}." in shown
    assert "Traceback" not in shown
    state = folder.read_state()
    assert (state.state, state.asked, state.lost) == ("CANCELLED", False, False)
    (tmp_path / "slow").unlink()
    resumed = vf("run", "--resume", job)
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout.splitlines()[-1] == calm
    steps = [event.step for event in read_events(folder.path / STREAM) if isinstance(event, StepDone)]
    assert steps == list(range(STEPS))


def test_a_stop_with_a_checkpoint_says_where_the_job_goes_on(tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    job = vf("run", "--detach", str(SCRIPT), str(tmp_path)).stdout.split()[1]
    stream = JobFolder.of(job).path / STREAM
    while not stream.exists() or "loss_bits" not in stream.read_text():
        time.sleep(0.05)
    stopped = vf("stop", "--checkpoint", job)
    assert (stopped.returncode, stopped.stderr) == (0, "")
    assert stopped.stdout.startswith(f"job {job} has ended\n`vf run --resume {job}` continues from step ")


ON_A_FULL_DISK = """
mount -t tmpfs -o size=8m none "$VF_HOME" || exit 77
vf() { "$PYTHON" -m virtualflow.cli.main "$@"; }
touch "$FOLDER/slow"
job=$(vf run --detach --devices 2 "$SCRIPT" "$FOLDER" | cut -d ' ' -f 2)
until grep -qs loss_bits "$VF_HOME/jobs/$job/events.jsonl"; do sleep 0.05; done
cat /dev/zero > "$VF_HOME/filler" 2> /dev/null
vf stop --checkpoint "$job" > "$FOLDER/said" 2>&1
echo $? > "$FOLDER/code"
rm "$VF_HOME/filler"
vf status "$job" --json > "$FOLDER/state"
vf status "$job" > "$FOLDER/shown"
rm "$FOLDER/slow"
vf run --resume "$job" > "$FOLDER/out" 2>&1
"""


def test_a_stop_for_whose_checkpoint_there_is_no_room_fails_and_says_so(
    tmp_path: Path, vf_home: Path, calm: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    vf_home.mkdir()
    variables = {"PYTHON": sys.executable, "SCRIPT": str(SCRIPT), "FOLDER": str(folder), "COLUMNS": "300"}
    command = ["unshare", "--mount", "--map-root-user", "sh", "-c", ON_A_FULL_DISK]
    ended = subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, timeout=300, check=False
    )
    if ended.returncode == 77 or "unshare failed" in ended.stderr or "Operation not permitted" in ended.stderr:
        pytest.skip("mounting a file system is not allowed here")
    assert ended.returncode == 0, ended.stderr
    words = (folder / "said").read_text()
    assert int((folder / "code").read_text()) == 2, words
    assert "has ended, and no checkpoint was written: " in words
    assert "No space left on device" in words
    assert "Traceback" not in words
    state = json.loads((folder / "state").read_text())
    assert (state["state"], state["checkpoint_step"], state["asked"]) == ("FAILED", None, True)
    assert "No space left on device" in state["reason"]
    assert "No space left on device" in (folder / "shown").read_text()
    assert (folder / "out").read_text().splitlines()[-1] == calm
