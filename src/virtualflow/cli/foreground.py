"""A job in the foreground of a terminal, or sent to the background."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext, suppress

from virtualflow.cli.dashboard import of_one_job
from virtualflow.cli.progress import ProgressBar
from virtualflow.cli.resuming import how_to_go_on
from virtualflow.cli.screen import screen
from virtualflow.errors import LaunchError
from virtualflow.events import STREAM
from virtualflow.job import launch
from virtualflow.job.folder import JobFolder
from virtualflow.job.outcome import JobOutcome
from virtualflow.job.output import AllOutput, LeadOutput
from virtualflow.job.serve import run_job

DETACH_SECONDS = 60.0


def in_the_foreground(
    folder: JobFolder, token: str, *, all_output: bool, progress: bool | None, dashboard: bool
) -> JobOutcome:
    """Run the job to its end, show what it does, and explain a failure."""
    with of_one_job(folder) if dashboard else nullcontext():
        if (sys.stdout.isatty() if progress is None else progress) and not all_output:
            with ProgressBar(folder.path / STREAM) as bar:
                outcome = run_job(folder, bar, bar.refresh, token=token)
        else:
            outcome = run_job(folder, AllOutput() if all_output else LeadOutput(), token=token)
    with suppress(OSError):  # the terminal may be closed by now
        _explain_failure(outcome)
        if outcome.was_interrupted:
            print(f"\ninterrupted: all workers have ended. {how_to_go_on(folder)}.", file=sys.stderr, flush=True)
    return outcome


def in_the_background(folder: JobFolder, token: str) -> None:
    """Start the job's coordinator as a process of its own; return when it can be asked."""
    process = launch.start(folder, token)
    deadline = time.monotonic() + DETACH_SECONDS
    while not folder.control.exists() and time.monotonic() < deadline:
        if process.poll() == 0:
            return  # a short job
        if process.poll() is not None:
            raise LaunchError(f"the job ended at once: {(folder.path / launch.LOG).read_text()[-2000:]}")
        time.sleep(0.05)


def _explain_failure(outcome: JobOutcome) -> None:
    if outcome.failure is None or not outcome.failure.text:
        return
    console = screen(stderr=True, highlight=False, soft_wrap=True)
    if outcome.failure.device:
        console.print(f"failed on device {outcome.failure.device}:", style="bold red")
    console.print(outcome.failure.text.rstrip())
