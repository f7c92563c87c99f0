"""Where a job that was stopped goes on, in words."""

from __future__ import annotations

from pathlib import Path

from virtualflow.core.job_state import JobState
from virtualflow.job.checkpoints import name_of
from virtualflow.job.folder import JobFolder

UNFINISHED = (JobState.CANCELLED, JobState.FAILED)


def where_it_goes_on(folder: JobFolder, checkpoint: Path | None) -> str:
    """Where ``vf run --resume`` goes on."""
    if checkpoint is None:
        return f"job {folder.path.name} has no checkpoint: it starts from the beginning"
    return f"job {folder.path.name} continues from {name_of(checkpoint)}"


def how_to_go_on(folder: JobFolder) -> str:
    """What to type for a job that was stopped, and what that does."""
    latest = folder.latest_checkpoint()
    does = (
        "starts from the beginning: there is no checkpoint" if latest is None else f"continues from {name_of(latest)}"
    )
    return f"`vf run --resume {folder.path.name}` {does}"


def can_go_on(folder: JobFolder, state: JobState) -> bool:
    """Whether its owner may resume it; a manager's jobs are the manager's."""
    spec = folder.spec()
    return state in UNFINISHED and not spec.managed and spec.resumable
