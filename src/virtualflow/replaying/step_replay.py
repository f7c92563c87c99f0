"""Runs a step of a run again, on any devices, and compares it with the run's certificate."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from virtualflow.errors import CheckpointError, LaunchError
from virtualflow.events import STREAM, Loaded, Regrouped, RunStarted, StepDone, StreamEvent, last_step, read_events
from virtualflow.events.certificate import Certificate, Verdict, compare
from virtualflow.job import launch
from virtualflow.job.backend import Backend
from virtualflow.job.checkpoints import name_of, step_of
from virtualflow.job.folder import JobFolder, JobSpec
from virtualflow.job.serve import run_job
from virtualflow.replaying.starting_points import kept_for, starting_points
from virtualflow.system.home import home, new_job_id

ShowProgress = Callable[[str], None]
NOTES = "nodes"  # in a job's folder: what its workers have noted


class InterruptedReplay(Exception):  # noqa: N818  (no error)
    """Ctrl-C or a signal has interrupted it; *code* is the exit code for that."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True)
class Replay:
    """What is to be replayed: *step* of the run in *folder*, with notes of its virtual nodes, and their tensors."""

    folder: JobFolder
    step: int
    devices: tuple[str, ...]
    notes: bool = False
    tensors: bool = False
    from_the_beginning: bool = False


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay has found. ``nodes`` are the notes of the step's virtual nodes: see ``train.node_notes``."""

    start: str  # where it began, in words
    first_step: int
    verdict: Verdict
    certificate: Certificate  # of the replay
    nodes: list[dict[str, Any]]
    state: dict[str, str]  # the model as the step found it, each tensor by its form and digest


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run that is to be replayed, as it was recorded."""

    folder: JobFolder
    events: Sequence[StreamEvent]
    certificate: Certificate

    @classmethod
    def of(cls, folder: JobFolder) -> PastRun:
        """Raises EventStreamError if nothing is recorded."""
        events = list(read_events(folder.path / STREAM))
        return cls(folder, events, Certificate.of(events, f"job {folder.path.name}"))

    def devices_at(self, step: int) -> tuple[str, ...]:
        """As many devices as the run had in *step*, by number."""
        count, done = 1, False
        for event in self.events:
            if isinstance(event, RunStarted | Regrouped) and not done:
                count = len(event.devices)
            elif isinstance(event, StepDone):
                done = event.step >= step
        return tuple(map(str, range(count)))

    def check(self, step: int, *, notes: bool) -> None:
        """Raise LaunchError if *step* can't be replayed."""
        name, steps = f"job {self.folder.path.name}", self.certificate.steps
        if step not in steps:
            made = f"it has made the steps {min(steps)} to {max(steps)}" if steps else "it has made none yet"
            raise LaunchError(f"{name} has no step {step}: {made}")
        if self.certificate.facts.get("reduction") == "fast":
            raise LaunchError(
                f"{name} was run with reduction='fast', whose bits depend on the devices: a replay can prove nothing"
            )
        if notes and any(isinstance(event, RunStarted) and event.cells for event in self.events):
            raise LaunchError(
                f"{name} trains a model that is cut into stages: no device runs a whole virtual node there, so none "
                "can be looked at. Without --node and --dump, its steps can be replayed."
            )


@contextmanager
def replayed(
    run: PastRun, replay: Replay, show: ShowProgress = lambda _: None, *, backend: Backend | None = None
) -> Iterator[tuple[Replayed, Path]]:
    """Replay a step of *run*; yield what was found, and the folder of tensors, which is removed afterwards.

    *show* is called with how far it is. *backend* is one that is open already.
    """
    run.check(replay.step, notes=replay.notes)
    for behind, checkpoint in starting_points(run.folder, run.events, replay.step):
        if replay.from_the_beginning and behind:
            continue
        folder = JobFolder(home() / "jobs" / new_job_id())
        try:
            found = None
            if _run(run, replay, folder, checkpoint, show, backend):
                found = _found(run, replay, folder, behind, name_of(checkpoint))
            if found is not None:
                yield found, folder.path / NOTES
                return
        finally:
            shutil.rmtree(folder.path, ignore_errors=True)


def _run(
    run: PastRun,
    replay: Replay,
    folder: JobFolder,
    checkpoint: Path | None,
    show: ShowProgress,
    backend: Backend | None,
) -> bool:
    """Run the replay as the job of *folder*; return whether *checkpoint* could be read: it may be another run's now."""
    described = run.folder.spec().description
    job = JobSpec(
        folder.path.name,
        replace(
            described.result(),
            device_type=run.certificate.facts.get("device_type", described.device_type),
            name=f"step {replay.step} of {run.folder.path.name}",
            replay={"step": replay.step, "notes": replay.notes, "tensors": replay.tensors},
        ),
        replay.devices,
        resumable=False,
    )
    folder.create_like(run.folder, job)
    kept = kept_for(folder, checkpoint)
    folder.change(job.changed(from_checkpoint=str(kept) if kept is not None else None))
    stream, start = folder.path / STREAM, name_of(checkpoint)

    def tick() -> None:
        show(f"from {start}: step {max(last_step(stream), 0)} of {replay.step}")

    outcome = run_job(folder, None, tick, token=launch.prepare(folder, kept), backend=backend)
    if outcome.was_interrupted:
        raise InterruptedReplay(outcome.code)
    if (
        outcome.failure is not None
        and outcome.failure.cause == CheckpointError.__name__
        and step_of(checkpoint) is None
    ):
        return False
    if outcome.failure is not None or outcome.code:
        reason = outcome.failure.text.strip() if outcome.failure is not None else f"exit code {outcome.code}"
        raise LaunchError(f"step {replay.step} of job {run.folder.path.name} could not be replayed: {reason}")
    return True


def _found(run: PastRun, replay: Replay, folder: JobFolder, behind: int, start: str) -> Replayed | None:
    """What has come of it; None if it began from another run's checkpoint."""
    events = list(read_events(folder.path / STREAM))
    recorded = run.certificate
    for event in events:
        before = recorded.steps.get(event.step - 1) if isinstance(event, Loaded) else None
        if isinstance(event, Loaded) and (event.step != behind or (before and before.chain != event.chain)):
            return None
    certificate = Certificate.of(events, "the replay")
    steps = {step: done for step, done in recorded.steps.items() if min(certificate.steps) <= step <= replay.step}
    digests = {step: digest for step, digest in recorded.digests.items() if step < replay.step}
    verdict = compare(Certificate(recorded.facts, steps, digests), certificate)
    notes = folder.path / NOTES
    nodes = [json.loads(path.read_text()) for path in sorted(notes.glob("node-*.json"))]
    state = json.loads((notes / "state.json").read_text()) if replay.notes else {}
    return Replayed(start, min(certificate.steps), verdict, certificate, nodes, state)
