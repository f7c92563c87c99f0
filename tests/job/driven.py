"""Runs a job in this process and does things to it when it has made so many steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tests.conftest import Finished, Printed
from virtualflow.events import STREAM, StepDone, read_events
from virtualflow.job.backend import Backend
from virtualflow.job.coordinator import Coordinator
from virtualflow.job.folder import JobFolder, JobSpec

Deed = Callable[[Coordinator], object]  # False: not yet
PACE = """
import sys, time
from pathlib import Path

folder = Path(sys.argv[1])
def pace(trainer):  # ever slower, so that a test can do all that it plans on a busy machine too
    if (folder / "slow").exists():
        time.sleep(0.02 * 1.05**trainer.global_step)
"""
TRAIN = """
import os, virtualflow as vf
from tests.train.small import make, mlp, regression

vf.seed(0)
trainer = make(mlp())
for _ in trainer.epochs(20):
    for batch in trainer.batches(regression()):
        trainer.step(batch)
        pace(trainer)
"""


class Driven:
    """One job, slow until everything that was planned for it has happened."""

    def __init__(self, backend: Backend, folder: Path, script: str, patience_seconds: float = 30.0) -> None:
        self._backend = backend
        self.folder = folder
        self.script = folder / "script.py"
        self._patience = patience_seconds
        self.tick: Deed = lambda _: None
        self.include: Sequence[str] = ()
        self.module = ""
        folder.mkdir(parents=True, exist_ok=True)
        self.script.write_text(PACE + script)

    def run(
        self, devices: int | Sequence[str] = 1, plan: Sequence[tuple[int, Deed]] = (), device_type: str = "auto"
    ) -> Finished:
        """Run on *devices*; each deed of *plan* comes at its step, and after the one before it is through."""
        job = JobFolder(self.folder / "job")
        spec = JobSpec.of(
            job_id="job",
            script=str(self.script),
            arguments=(str(self.folder),),
            devices=tuple(map(str, range(devices)) if isinstance(devices, int) else devices),
            device_type=device_type,
            patience_seconds=self._patience,
        )
        job.create(spec, self.include, self.module)
        printed = Printed()
        self._left = list(plan)
        self._stream = job.path / STREAM
        if plan:
            (self.folder / "slow").touch()
        with job.locked():
            self.coordinator = Coordinator(spec, job, self._backend, printed, self._tick)
            return Finished(self.coordinator.run(), job.path, printed)

    @property
    def step(self) -> int:
        """How many steps the job has made; -1 before it is ready for the first."""
        if not self._stream.exists():
            return -1
        return sum(isinstance(event, StepDone) for event in read_events(self._stream))

    def _tick(self) -> None:
        self.tick(self.coordinator)
        if not self.coordinator.roster.is_settled or not (self.folder / "slow").exists():
            return
        if not self._left:
            (self.folder / "slow").unlink()
        elif self.step >= self._left[0][0] and self._left[0][1](self.coordinator) is not False:
            self._left.pop(0)


def to(devices: int) -> Deed:
    """A resize."""
    return lambda coordinator: coordinator.resize(devices)


def to_others(*devices: str) -> Deed:
    """A move to devices of these names."""
    return lambda coordinator: coordinator.move(devices)


def after_a_loss(deed: Deed) -> Deed:
    """The same, once the coordinator has heard of a death."""
    return lambda coordinator: coordinator.roster.failures > 0 and deed(coordinator)
