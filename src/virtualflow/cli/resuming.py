"""Where a job that was stopped goes on, in words."""

from __future__ import annotations

from pathlib import Path

from virtualflow.runtime.folder import JobFolder

UNFINISHED = ("CANCELLED", "FAILED")


def step_of(checkpoint: Path | None) -> int | None:
    """How many steps an automatic checkpoint has behind it; None without one."""
    return int(checkpoint.stem.removeprefix("step-")) if checkpoint is not None else None


def where_it_goes_on(folder: JobFolder, checkpoint: Path | None) -> str:
    """What ``vf run --resume`` says of itself."""
    job, step = folder.path.name, step_of(checkpoint)
    if step is None:
        return f"job {job} has no checkpoint: it starts from the beginning"
    return f"job {job} goes on from step {step}"


def how_to_go_on(folder: JobFolder) -> str:
    """What to type for a job that was stopped, and what that does."""
    step = step_of(folder.latest_checkpoint())
    does = "starts from the beginning: there is no checkpoint" if step is None else f"goes on from step {step}"
    return f"`vf run --resume {folder.path.name}` {does}"


def can_go_on(folder: JobFolder, state: str) -> bool:
    """Whether its owner may resume it; a manager's jobs are the manager's, and a measurement is made anew."""
    spec = folder.spec()
    return state in UNFINISHED and not spec.managed and spec.profiling is None
