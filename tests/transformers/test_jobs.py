"""The job of ``job.py`` ends the same, log and all, on any devices, through growth, deaths, and a stop."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Finished, Launcher, Printed
from tests.job.driven import Deed, after_a_loss, to
from tests.transformers import job
from tests.transformers.tiny import Sentences, trainer
from virtualflow.backends.local import LocalBackend
from virtualflow.events import STREAM, StepDone, read_events
from virtualflow.job.coordinator import Coordinator
from virtualflow.job.folder import JobFolder, JobSpec

SCRIPT = str(Path(job.__file__))
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a plain script on one device gives."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("calm")
        patch.setenv("VF_HOME", str(folder / "home"))
        patch.setenv("TENSORBOARD_LOGGING_DIR", str(folder / "runs"))
        return job.run(folder)


@pytest.fixture(scope="module")
def loaded() -> Iterator[LocalBackend]:
    """One that has loaded what each worker of these jobs needs."""
    names = ["transformers.BertForSequenceClassification", "virtualflow.transformers.Trainer"]
    with LocalBackend(preload=names, environment={"HF_HUB_OFFLINE": "1"}) as own:
        yield own


ON_DEVICES = """
import sys
from pathlib import Path
from tests.transformers.test_jobs import on_devices

hf = on_devices(Path(sys.argv[1]))
assert hf.args.device == hf.model.device
print("trained on", hf.model.device)
print(hf.digest())
"""


def on_devices(folder: Path) -> Any:
    """Train on whatever there is."""
    test = Sentences(21, seed=1)
    hf = trainer(folder, use_cpu=False, dataloader_pin_memory=False, eval_strategy="epoch", eval_dataset=test)
    hf.train()
    return hf


class Jobs:
    """Runs the job in one folder, once or, after a stop, again."""

    def __init__(self, backend: LocalBackend, folder: Path) -> None:
        self._backend = backend
        self.folder = folder
        self.job = JobFolder(folder / "job")

    def run(self, devices: int, plan: Sequence[tuple[int, Deed]] = (), kills: Sequence[str] = ()) -> Finished:
        """Run on *devices*; each deed of *plan* comes after so many steps and when the one before is through."""
        spec = JobSpec.of(
            job_id="job",
            script=SCRIPT,
            arguments=(str(self.folder), *kills),
            devices=tuple(map(str, range(devices))),
            patience_seconds=60.0,
        )
        checkpoint = self.job.latest_checkpoint() if self.job.path.exists() else None
        if checkpoint is None:
            self.job.create(spec)
        else:
            self.job.change(spec)
        if plan:
            (self.folder / "slow").touch()
        self._left, printed = list(plan), Printed()
        with self.job.locked():
            self._coordinator = Coordinator(spec, self.job, self._backend, printed, self._tick, checkpoint)
            return Finished(self._coordinator.run(), self.job.path, printed)

    def _tick(self) -> None:
        stream = self.job.path / STREAM
        if not (self.folder / "slow").exists() or not stream.exists() or not self._coordinator.roster.is_settled:
            return
        made = sum(isinstance(event, StepDone) for event in read_events(stream))
        if not self._left:
            (self.folder / "slow").unlink()
        elif made >= self._left[0][0] and self._left[0][1](self._coordinator) is not False:
            self._left.pop(0)

    def ended(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads((self.folder / "ended.json").read_text())
        return result


@pytest.mark.parametrize("backend", ["gpu"], indirect=True, scope="session")
def test_each_worker_trains_on_its_own_accelerator(backend: LocalBackend, tmp_path: Path) -> None:
    """transformers would put all of them on the first."""
    script = tmp_path / "script.py"
    script.write_text(ON_DEVICES)
    launch = Launcher(backend, tmp_path / "jobs")
    finished = launch(script, 2, [str(tmp_path)])
    assert finished.digest == on_devices(tmp_path).digest()
    # Which two they are depends on the jobs of other test processes.
    used = [re.findall("trained on (cuda:[0-9]+)", finished.out(device)) for device in ("0", "1")]
    assert len(used[0]) == len(used[1]) == 1
    assert used[0] != used[1]


def kill_the_lead(coordinator: Coordinator) -> None:
    os.kill(coordinator.status().workers[0].pid, signal.SIGKILL)


def test_growth_the_death_of_the_lead_and_a_shrink(calm: dict[str, Any], loaded: LocalBackend, tmp_path: Path) -> None:
    jobs = Jobs(loaded, tmp_path)
    finished = jobs.run(2, [(2, to(3)), (6, kill_the_lead), (9, after_a_loss(to(1)))])
    assert finished.outcome.code == 0, finished.failure
    assert {change.cause for change in finished.changes} == {"resize", "loss"}
    assert jobs.ended() == calm
    # One run for all leads, and the next one's progress bar begins where the first one's ended.
    assert [path.name for path in (tmp_path / "out" / "runs").iterdir()] == ["job"]
    printed = "".join(text.decode() for (_, stream), text in finished.printed.text.items() if stream == "stderr")
    assert "20/24" in printed
    assert "had changed by then" not in printed  # what transformers counts is not lost


def test_the_death_of_one_lead_in_a_save_and_of_the_next_in_an_evaluation(
    calm: dict[str, Any], loaded: LocalBackend, tmp_path: Path
) -> None:
    jobs = Jobs(loaded, tmp_path)
    finished = jobs.run(3, kills=["save-1-0", "evaluate-6-1"])
    assert finished.outcome.code == 0, finished.failure
    assert {path.name for path in tmp_path.glob("killed-*")} == {"killed-save", "killed-evaluate"}
    assert jobs.ended() == calm


def test_a_job_that_is_stopped_goes_on_with_other_devices(
    calm: dict[str, Any], loaded: LocalBackend, tmp_path: Path
) -> None:
    jobs = Jobs(loaded, tmp_path)
    stopped = jobs.run(2, [(7, lambda coordinator: coordinator.stop(checkpoint=True))])
    assert not stopped.failure
    assert 7 <= len(stopped.steps) < calm["steps"] == 20
    assert jobs.job.latest_checkpoint() is not None
    assert not (tmp_path / "ended.json").exists()
    (tmp_path / "slow").unlink(missing_ok=True)
    finished = jobs.run(1)
    assert finished.outcome.code == 0, finished.failure
    assert jobs.ended() == calm
