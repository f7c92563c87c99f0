"""Runs a job whose folder exists, in this process: the foreground of ``vf run``, and ``--detach`` behind the scenes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from virtualflow.core.membership import home
from virtualflow.runtime.coordinator import Coordinator, Outcome
from virtualflow.runtime.folder import JobFolder
from virtualflow.runtime.interrupts import Interrupted, interruptible
from virtualflow.runtime.local import LocalBackend
from virtualflow.runtime.output import Logged, Sink


def run_job(
    folder: JobFolder,
    sink: Sink | None = None,
    on_tick: Callable[[], None] = lambda: None,
    resume_from: Path | None = None,
    backend: LocalBackend | None = None,
) -> Outcome:
    """Run the job of *folder* to its end; a signal ends it and every worker. *backend* is one that is open already."""
    job = folder.spec()
    output = Logged(folder.path / "logs", sink)
    try:
        own = LocalBackend(threads_per_device=job.threads_per_device) if backend is None else nullcontext(backend)
        with folder.locked(), interruptible() as interrupts, own as workers:
            coordinator = Coordinator(job, folder, workers, output, on_tick, resume_from)
            interrupts.on_notice = coordinator.notice
            outcome = coordinator.run()
        if outcome.failure is not None:
            folder.failure.write_text(outcome.failure.text)
        return outcome
    except Interrupted as interruption:
        return Outcome(128 + interruption.signal_number)
    finally:
        output.close()


def main() -> None:
    """``python -m virtualflow.runtime.serve JOB [CHECKPOINT]``"""
    job_id, *checkpoint = sys.argv[1:]
    outcome = run_job(JobFolder(home() / "jobs" / job_id), resume_from=Path(checkpoint[0]) if checkpoint else None)
    if outcome.failure is not None:
        print(outcome.failure.text, file=sys.stderr)
    sys.exit(outcome.code)


if __name__ == "__main__":
    main()
