"""Runs a job whose folder exists, in this process: the foreground of ``vf run``, and ``--detach`` behind the scenes."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

from msgspec import structs

from virtualflow.backends.local import LocalBackend
from virtualflow.core.job_state import JobState
from virtualflow.errors import VirtualFlowError
from virtualflow.job import checkpoints, launch
from virtualflow.job.backend import Backend
from virtualflow.job.coordinator import Coordinator
from virtualflow.job.folder import JobFolder, JobSpec
from virtualflow.job.outcome import JobOutcome
from virtualflow.job.output import Logged, Sink
from virtualflow.program import preload_names
from virtualflow.program.manifest import Program
from virtualflow.system.home import home
from virtualflow.system.interrupts import Interrupted, interruptible


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
            interrupts = owned.enter_context(interruptible())
            try:
                workers = backend or owned.enter_context(_backend_of(job, folder, lock))
                coordinator = Coordinator(job, folder, workers, output, on_tick, checkpoint)
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
    except Interrupted as interruption:
        return JobOutcome(128 + interruption.signal_number, was_interrupted=True)
    finally:
        output.close()


def _print(output: Sink, job: JobSpec, text: str) -> None:
    output.write(job.devices[0], "stderr", f"{text}\n".encode(), lead=True)


def _backend_of(job: JobSpec, folder: JobFolder, lock: int) -> AbstractContextManager[Backend]:
    described, preload = job.description, job.description.preload
    if preload is None:
        preload = preload_names.of_program(Program.of(folder.snapshot, described.script), folder.snapshot)
    if job.backend == "local":
        # With the lock: workers that outlive their coordinator for a moment still are the job.
        return LocalBackend(
            threads_per_device=described.threads_per_device,
            hash_seed=described.hash_seed,
            inherited=[lock],
            device_type=described.device_type,
            emulated=described.emulated.keys(),
            preload=preload,
        )
    from virtualflow.backends.ray import RayBackend  # raises LaunchError if Ray is not installed

    return RayBackend(
        threads_per_device=described.threads_per_device,
        hash_seed=described.hash_seed,
        device_type=described.device_type,
        emulated=described.emulated.keys(),
        pinned=job.pinned,
        preload=preload,
    )


def main() -> None:
    """``python -m virtualflow.job.serve JOB TOKEN``"""
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
