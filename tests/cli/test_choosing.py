"""A damaged checkpoint is skipped for the one before it, with a word; and a person can choose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.test_jobs import Job, run_verb, start, vf
from tests.conftest import Printed
from virtualflow.backends.local import LocalBackend
from virtualflow.events import Loaded
from virtualflow.job import launch
from virtualflow.job.coordinator import Coordinator
from virtualflow.job.folder import JobFolder

pytestmark = pytest.mark.timeout(400)  # a busy machine decides nothing

__all__ = ["start"]


def steps_of(job: Job) -> list[int]:
    result: list[int] = job.status()["checkpoints"]
    return result


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)


def loaded(job: Job) -> list[int]:
    return [event.step for event in job.events if isinstance(event, Loaded)]


@pytest.fixture
def stopped(start: Callable[..., Job]) -> Job:
    job = start("--devices", "2", "--checkpoint-every", "3")
    job.until_step(7)
    assert vf("stop", "--checkpoint", job.id).returncode == 0
    job.let_go()
    return job


def own(job: Job, step: int) -> Path:
    return job.path / "checkpoints" / f"step-{step:09d}.pt"


def test_a_damaged_newest_checkpoint_is_skipped_for_the_one_before_it(stopped: Job, calm: str) -> None:
    before, newest = steps_of(stopped)
    damage(own(stopped, newest))
    assert run_verb("run", "--resume", stopped.id, "--from-checkpoint", str(newest))[1].count("is damaged") == 1
    resumed = vf("run", "--resume", stopped.id)
    assert resumed.returncode == 0, resumed.stderr
    assert f"step-{newest:09d}.pt is damaged" in resumed.stderr
    assert f"It is kept as step-{newest:09d}.pt.damaged. The job continues from step {before}.\n" in resumed.stderr
    assert f"job {stopped.id} continues from step {before}\n" in resumed.stderr
    assert resumed.stdout.splitlines()[-1] == calm
    assert loaded(stopped) == [before]
    assert own(stopped, newest).with_suffix(".pt.damaged").exists()


def test_a_job_in_the_background_skips_one_that_is_damaged_after_it_was_chosen(stopped: Job, calm: str) -> None:
    # As under a manager, which does not read checkpoints.
    for step in (numbers := steps_of(stopped)):
        damage(own(stopped, step))
    folder = JobFolder.of(stopped.id)
    token = launch.prepare(folder, folder.latest_checkpoint())
    assert launch.start(folder, token).wait(90) == 0
    assert run_verb("logs", stopped.id)[1].splitlines()[-1] == calm
    log = "".join(path.read_text() for path in (stopped.path / "logs").iterdir())
    for step in numbers:
        assert f"step-{step:09d}.pt is damaged" in log
    assert "The job continues from the beginning." in log
    assert loaded(stopped) == []


def test_one_that_is_damaged_after_it_was_checked_is_no_fault_of_the_script(
    stopped: Job, backend: LocalBackend
) -> None:
    folder, newest = JobFolder.of(stopped.id), own(stopped, steps_of(stopped)[-1])
    damage(newest)
    outcome = Coordinator(folder.spec(), folder, backend, Printed(), resume_from=newest).run()
    assert outcome.failure is not None
    assert "is damaged" in outcome.failure.text
    assert folder.read_state().lost  # a manager starts it again, from the one before


def test_a_person_can_choose_a_step_or_a_file(stopped: Job, tmp_path: Path, calm: str) -> None:
    before, newest = steps_of(stopped)
    assert f"--from-checkpoint {before} chooses an earlier one" in run_verb("status", stopped.id)[1]
    code, output = run_verb("run", "--resume", stopped.id, "--from-checkpoint", "99999")
    assert (code, f"has no checkpoint of step 99999. It has: {before}, {newest}" in output) == (2, True)
    code, output = run_verb("run", "--resume", stopped.id, "--from-checkpoint", str(tmp_path / "none.pt"))
    assert (code, "there is no such file" in output) == (2, True)
    assert steps_of(stopped) == [before, newest]  # nothing was touched

    copy = tmp_path / "mine.pt"
    copy.write_bytes(own(stopped, newest).read_bytes())
    # A new job that goes on from where that one was.
    another = vf("run", "--from-checkpoint", str(copy), str(Path(__file__).with_name("job.py")), str(stopped.folder))
    assert another.returncode == 0, another.stderr
    assert another.stdout.splitlines()[-1] == calm
    assert f"continues from {copy}\n" in another.stderr
    assert f"step {newest} loss" not in another.stdout
    assert f"step {newest + 1} loss" in another.stdout

    resumed = vf("run", "--resume", stopped.id, "--from-checkpoint", str(before))
    assert resumed.returncode == 0, resumed.stderr
    assert f"continues from step {before}\n" in resumed.stderr
    assert resumed.stdout.splitlines()[-1] == calm
    assert loaded(stopped) == [before]
    assert own(stopped, newest).with_suffix(".pt.aside").exists()
