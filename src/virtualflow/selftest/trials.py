"""Runs a job of the selftest on devices of this machine, and resizes, kills or stops it at given steps."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from virtualflow.backends.local import LocalBackend
from virtualflow.core.wording import counted
from virtualflow.errors import LaunchError
from virtualflow.events import STREAM, Regrouped, StreamEvent, last_step, read_events
from virtualflow.events.certificate import Certificate
from virtualflow.job.coordinator import Coordinator
from virtualflow.job.folder import JobFolder, JobSpec

Intervention = Callable[[Coordinator], bool]  # False: not yet
PATIENCE_SECONDS = 60.0  # a worker on an accelerator takes a while to load its libraries
LIMIT_SECONDS = 300.0  # for a job that takes seconds: one that hangs is ended, and reported


class _Kept:
    """What the workers print."""

    def __init__(self) -> None:
        self.printed: dict[str, bytes] = {"stdout": b"", "stderr": b""}

    def write(self, device: str, stream: str, data: bytes, *, lead: bool) -> None:
        self.printed[stream] += data

    def close(self) -> None:
        """Nothing is held open."""


@dataclass(frozen=True)
class Trial:
    """A job that has come to its end, or was stopped there."""

    folder: JobFolder
    stdout: str

    @property
    def result(self) -> dict[str, Any]:
        """What the script has printed last."""
        result: dict[str, Any] = json.loads(self.stdout.splitlines()[-1])
        return result

    @cached_property
    def events(self) -> list[StreamEvent]:
        return list(read_events(self.folder.path / STREAM))

    @property
    def certificate(self) -> Certificate:
        return Certificate.of(self.events, "the run")

    def pauses_ms(self, cause: str) -> list[float]:
        """How long the job stood still for each change of its membership for that *cause*."""
        changes = [event for event in self.events if isinstance(event, Regrouped) and event.cause == cause]
        return [round(sum(change.pause_ms.values()), 1) for change in changes]


@dataclass
class TrialRunner:
    """Runs trials one after another, each in a folder of its own."""

    backend: LocalBackend
    folder: Path
    device_type: str
    limit_seconds: float = LIMIT_SECONDS
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def run(
        self,
        program: str,
        arguments: Sequence[str],
        devices: int,
        interventions: Sequence[tuple[int, Intervention]] = (),
    ) -> Trial:
        """Run *program*; each intervention is done at its step, once the one before it is done.

        Raises LaunchError with what went wrong if the job fails, or does not end in time.
        """
        place = self.folder / f"trial-{next(self._numbers)}"
        place.mkdir()
        script = place / f"{program}.py"
        script.write_text(f"from virtualflow.selftest.programs import {program}\n\n{program}.main()\n")
        job = JobSpec.of(
            job_id=f"selftest-{place.name}",
            script=str(script),
            arguments=tuple(word.replace("{place}", str(place)) for word in arguments),
            devices=_names(devices),
            device_type=self.device_type,
            patience_seconds=PATIENCE_SECONDS,
        )
        folder = JobFolder(place / "job")
        folder.create(job)
        return self._run(job, folder, interventions)

    def go_on(self, trial: Trial, devices: int) -> Trial:
        """Resume a job that was stopped, on *devices* devices."""
        job = trial.folder.spec().changed(devices=_names(devices))
        trial.folder.change(job)
        return self._run(job, trial.folder, (), trial.folder.latest_checkpoint())

    def _run(
        self,
        job: JobSpec,
        folder: JobFolder,
        interventions: Sequence[tuple[int, Intervention]],
        checkpoint: Path | None = None,
    ) -> Trial:
        kept, driver = _Kept(), _Driver(folder, list(interventions), time.monotonic() + self.limit_seconds)
        with folder.locked():
            coordinator = Coordinator(job, folder, self.backend, kept, lambda: driver.tick(coordinator), checkpoint)
            outcome = coordinator.run()
        if driver.is_late:
            raise LaunchError(
                f"the job hung: it had not ended after {self.limit_seconds:.0f} s, {counted(driver.steps, 'step')} and "
                f"{len(interventions) - len(driver.left)} of {len(interventions)} interventions. "
                f"{kept.printed['stderr'].decode().strip()}"
            )
        if outcome.code != 0:
            reason = outcome.failure.text if outcome.failure is not None else kept.printed["stderr"].decode()
            raise LaunchError(reason.strip() or f"the job ended with exit code {outcome.code}")
        if driver.left:
            raise LaunchError(
                f"the job ended before the test had finished with it ({len(driver.left)} interventions were left)"
            )
        return Trial(folder, kept.printed["stdout"].decode())


class _Driver:
    def __init__(self, folder: JobFolder, interventions: list[tuple[int, Intervention]], deadline: float) -> None:
        self.left = interventions
        self.is_late = False
        self._deadline = deadline
        self._stream = folder.path / STREAM
        self._hold = folder.path.parent / "hold"  # the script is slow as long as it is there
        if interventions:
            self._hold.touch()

    @property
    def steps(self) -> int:
        """How many the job has made."""
        return last_step(self._stream)

    def tick(self, coordinator: Coordinator) -> None:
        if time.monotonic() > self._deadline and not self.is_late:
            self.is_late = True
            coordinator.stop(checkpoint=False)
        if not self._hold.exists() or not coordinator.roster.is_settled:
            return
        if not self.left:
            self._hold.unlink()
        elif self.steps >= self.left[0][0] and self.left[0][1](coordinator):
            self.left.pop(0)


def _names(devices: int) -> tuple[str, ...]:
    return tuple(map(str, range(devices)))
