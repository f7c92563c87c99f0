"""A job in stages that is stopped leaves a checkpoint in parts, and goes on from it on other devices."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.conftest import Finished, Launcher, Printed
from tests.stages.test_same_bits_with_stages import JOB, run, said
from virtualflow.backends.local import LocalBackend
from virtualflow.events import STREAM, EventReader, StepDone
from virtualflow.job.coordinator import Coordinator
from virtualflow.job.folder import JobFolder, JobSpec

CASE = {"model": "gpt", "epochs": 4, "copies": 2}


class Stopped:
    """A job that is told to stop after its fourth step; with *kill*, one of its workers dies at the same time."""

    def __init__(self, backend: LocalBackend, path: Path, *, kill: bool) -> None:
        self._backend = backend
        self._kill = kill
        self._hold = path / "hold"
        self.folder = JobFolder(path / "job")

    def run(self, devices: int) -> Finished:
        self._hold.parent.mkdir(parents=True, exist_ok=True)
        self._hold.touch()
        case = CASE | {"hold": str(self._hold)}
        names = tuple(str(device) for device in range(devices))
        spec = JobSpec.of("job", str(JOB), (json.dumps(case),), names, patience_seconds=20.0, checkpoint_every=3)
        self.folder.create(spec)
        self._reader, self._is_told = EventReader(self.folder.path / STREAM), False
        printed = Printed()
        self._coordinator = Coordinator(spec, self.folder, self._backend, printed, self._tick)
        return Finished(self._coordinator.run(), self.folder.path, printed)

    def _tick(self) -> None:
        steps = [event.step for _, event in self._reader.read() if isinstance(event, StepDone)]
        if not self._is_told and any(step >= 4 for step in steps):
            self._is_told = True
            self._coordinator.stop(checkpoint=True)
            if self._kill:
                os.kill(self._coordinator.status().workers[1].pid, signal.SIGKILL)
            self._hold.unlink()

    def resume(self, devices: int) -> Finished:
        names = tuple(str(device) for device in range(devices))
        spec = JobSpec.of("job", str(JOB), (json.dumps(CASE),), names, patience_seconds=20.0)
        newest = max((self.folder.path / "checkpoints").glob("step-*.pt"))
        printed = Printed()
        coordinator = Coordinator(spec, self.folder, self._backend, printed, lambda: None, resume_from=newest)
        return Finished(coordinator.run(), self.folder.path, printed)


@pytest.mark.parametrize(("kill", "devices"), [(False, 1), (True, 4)])
def test_a_stopped_job_goes_on_elsewhere(
    cpus: LocalBackend, run_on_cpus: Launcher, tmp_path: Path, kill: bool, devices: int
) -> None:
    job = Stopped(cpus, tmp_path, kill=kill)
    stopped = job.run(3)
    assert stopped.outcome.code == 0, stopped.failure + stopped.err()
    assert len(stopped.steps) < 12
    kept = sorted(path.name for path in (stopped.folder / "checkpoints").iterdir())
    assert len(kept) <= 4  # two checkpoints, and their parts
    assert kept[-1] == f"{kept[-2]}.parts"
    resumed = job.resume(devices)
    assert resumed.outcome.code == 0, resumed.failure + resumed.err()
    assert said(resumed) == said(run(run_on_cpus, **CASE))
    assert len(resumed.steps) == 12
