"""``vf clean``: removes the folders of jobs that have ended. Asks first."""

from __future__ import annotations

import shutil
import time
from typing import Annotated

import typer

from virtualflow.cli.job_table import duration
from virtualflow.cli.options import seconds_of
from virtualflow.cli.screen import print_line
from virtualflow.core.job_state import ENDED, JobState
from virtualflow.core.wording import counted
from virtualflow.errors import DamagedError, LaunchError
from virtualflow.job.folder import JobFolder, all_jobs
from virtualflow.job.status import JobStatus


def clean(
    job: Annotated[
        str | None, typer.Argument(help="One job, whatever its age; without it, all that have ended.", metavar="JOB")
    ] = None,
    older_than: Annotated[
        str,
        typer.Option(help="Keep jobs that ended within this time, such as 12h or 7d; 0 keeps none.", metavar="TIME"),
    ] = "7d",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")] = False,
) -> None:
    """Remove the folders of jobs that ended more than a week ago, with their checkpoints and logs. Asks first."""
    if job is not None:
        old = [JobFolder.of(job)]
        _check_removable(old[0])
    else:
        age = seconds_of(older_than, "--older-than")
        old = [folder for folder in all_jobs() if _is_removable(folder) and time.time() - folder.last_change() >= age]
    if not old:
        newer = "has ended" if age == 0 else f"ended more than {older_than} ago. --older-than 0 removes newer ones, too"
        print(f"nothing to remove: no job {newer}.")
        return
    for folder in old:
        print_line(f"{folder.path.name}  {folder.title()}  ended {duration(time.time() - folder.last_change())} ago")
    if not yes and not typer.confirm(f"Remove {counted(len(old), 'job')}, with checkpoints and logs?"):
        return
    for folder in old:
        _remove(folder)


def _remove(folder: JobFolder) -> None:
    shutil.rmtree(folder.path)
    print(f"removed job {folder.path.name}")


def _check_removable(folder: JobFolder) -> None:
    job, state = folder.path.name, folder.read_state().state
    if folder.is_locked():
        raise LaunchError(f"job {job} is running; `vf stop {job}` ends it")
    if state not in ENDED:
        raise LaunchError(f"job {job} has not ended: its state is {state}")


def _is_removable(folder: JobFolder) -> bool:
    runs, last = folder.is_locked(), folder.read_state()
    return not runs and last.state.is_ended and not _may_go_on(folder, last)


def _may_go_on(folder: JobFolder, status: JobStatus) -> bool:
    """Whether it is a manager's job that is not known to be over: its coordinator may just be gone."""
    try:
        return folder.spec().managed and status.state != JobState.DONE and not status.over
    except (OSError, DamagedError):
        return True
