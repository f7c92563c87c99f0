"""Runs a job whose folder exists, in this process: the foreground of ``vf run``, and ``--detach`` behind the scenes."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from msgspec import structs

from virtualflow.backends.left_processes import LeftProcesses, TakenOverBackend
from virtualflow.backends.local import LocalBackend
from virtualflow.core.job_state import JobState
from virtualflow.errors import VirtualFlowError
from virtualflow.job import checkpoints, launch
from virtualflow.job.backend import Backend
from virtualflow.job.coordinator import Coordinator
from virtualflow.job.folder import JobFolder, JobSpec
from virtualflow.job.outcome import JobOutcome
from virtualflow.job.output import Logged, Sink
from virtualflow.job.successor_search import TAKES_OVER
from virtualflow.program import preload_names
from virtualflow.program.manifest import Program
from virtualflow.system.home import home
from virtualflow.system.interrupts import Interrupted, interruptible

TAKEN_OVER = "the coordinator of this job was killed, and another one has taken over"


def run_job(
    folder: JobFolder,
    sink: Sink | None = None,
    on_tick: Callable[[], None] = lambda: None,
    *,
    token: str | None = None,
    backend: Backend | None = None,
) -> JobOutcome:
    """Run the job of *folder* to its end; a signal ends it and every worker: with a checkpoint, if it is the first.

    With the *token* of a launch, do nothing if that was made before. *backend* is one that is open already.
    """
    job = folder.spec()
    output = Logged(folder.path / "logs", sink)
    try:
        with ExitStack() as owned:
            lock = owned.enter_context(folder.locked())
            due, checkpoint = launch.take(folder, token) if token is not None else (True, None)
            if not due:
                return JobOutcome(0)
            checkpoint = checkpoints.whole(folder, checkpoint, lambda text: _print(output, job, text))
            owned.enter_context(folder.coordinated())

            def coordinator() -> Coordinator:
                workers = backend or owned.enter_context(_backend_of(job, folder, lock))
                return Coordinator(job, folder, workers, output, on_tick, checkpoint)

            return _outcome(folder, coordinator, owned)
    except Interrupted as interruption:
        return JobOutcome(128 + interruption.signal_number, was_interrupted=True)
    finally:
        output.close()


def take_over(folder: JobFolder, lock: int, marker: str) -> None:
    """Run a job whose coordinator has died to its end. *lock* is the job's, inherited from one of its workers."""
    job = folder.spec()
    output = Logged(folder.path / "logs")
    with contextlib.suppress(Interrupted), ExitStack() as owned:
        owned.callback(output.close)
        owned.enter_context(folder.coordinated())

        def coordinator() -> Coordinator:
            left = LeftProcesses(folder)
            found = left.find(job.patience_seconds)
            _print(output, job, TAKEN_OVER)
            workers = owned.enter_context(TakenOverBackend(left, marker, **_local_options(job, folder, lock)))
            resume_from = Path(found.resume_from) if found.resume_from else None
            return Coordinator(job, folder, workers, output, resume_from=resume_from, found=found)

        _outcome(folder, coordinator, owned)


def _outcome(folder: JobFolder, begin: Callable[[], Coordinator], owned: ExitStack) -> JobOutcome:
    """What comes of the job whose coordinator *begin* returns; what that needs is among what is *owned*."""
    interrupts = owned.enter_context(interruptible())
    try:
        coordinator = begin()
        interrupts.on_notice = coordinator.notice
        outcome = coordinator.run()
    except Interrupted:
        with contextlib.suppress(OSError):
            folder.write_state(structs.replace(folder.read_state(), state=JobState.CANCELLED, workers=()))
        raise
    number = interrupts.noticed or (signal.SIGTERM if coordinator.was_preempted else None)
    if number is not None and coordinator.was_stopped:
        outcome = dataclasses.replace(outcome, code=128 + number, was_interrupted=True)
    if outcome.failure is not None:
        quiet = f"the script ended with exit code {outcome.code}; its output shows why\n"
        with contextlib.suppress(OSError):  # a full disk: the state has the last line
            folder.failure.touch(0o600)
            folder.failure.write_text(outcome.failure.text or quiet)
    return outcome


def _print(output: Sink, job: JobSpec, text: str) -> None:
    output.write(job.devices[0], "stderr", f"{text}\n".encode(), lead=True)


def _backend_of(job: JobSpec, folder: JobFolder, lock: int) -> AbstractContextManager[Backend]:
    if job.backend == "local":
        return LocalBackend(**_local_options(job, folder, lock))
    described = job.description
    from virtualflow.backends.ray import RayBackend  # raises LaunchError if Ray is not installed

    return RayBackend(
        threads_per_device=described.threads_per_device,
        hash_seed=described.hash_seed,
        device_type=described.device_type,
        emulated=described.emulated.keys(),
        pinned=job.pinned,
        preload=_preload(job, folder),
    )


def _local_options(job: JobSpec, folder: JobFolder, lock: int) -> dict[str, Any]:
    described = job.description
    return {
        "threads_per_device": described.threads_per_device,
        "hash_seed": described.hash_seed,
        "inherited": [lock],  # the job's: workers that outlive their coordinator still are the job
        "device_type": described.device_type,
        "emulated": described.emulated.keys(),
        "preload": _preload(job, folder),
    }


def _preload(job: JobSpec, folder: JobFolder) -> Sequence[str]:
    if job.description.preload is not None:
        return job.description.preload
    return preload_names.of_program(Program.of(folder.snapshot, job.description.script), folder.snapshot)


def main() -> None:
    """``python -m virtualflow.job.serve JOB TOKEN``, or ``JOB --takes-over FOLDER LOCK MARKER`` from a worker."""
    if sys.argv[2] == TAKES_OVER:
        _, _, folder, lock, marker = sys.argv[1:]
        take_over(JobFolder(Path(folder)), int(lock), marker)
        return
    job_id, token = sys.argv[1:]
    try:
        outcome = run_job(JobFolder(home() / "jobs" / job_id), token=token)
    except VirtualFlowError as error:
        sys.exit(f"error: {error}")
    if outcome.failure is not None:
        print(outcome.failure.text, file=sys.stderr)
    sys.exit(outcome.code)


if __name__ == "__main__":
    main()
