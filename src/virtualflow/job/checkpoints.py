"""Which checkpoint a job goes on from: the newest that is whole, or the one that its owner chooses.

Nothing is removed here. What a job can't or must not go on from is set aside under another name.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

from virtualflow.errors import CheckpointError, LaunchError
from virtualflow.job.folder import JobFolder
from virtualflow.system import sealed_files

DAMAGED, ASIDE = ".damaged", ".aside"


def step_of(checkpoint: Path | None) -> int | None:
    """How many steps an automatic checkpoint has behind it; None without one, or if it is the script's own."""
    number = checkpoint.stem.removeprefix("step-") if checkpoint is not None else ""
    return int(number) if number.isdecimal() else None


def name_of(checkpoint: Path | None) -> str:
    """Where a job goes on that goes on from *checkpoint*, in words."""
    if checkpoint is None:
        return "the beginning"
    step = step_of(checkpoint)
    return f"step {step}" if step is not None else str(checkpoint)


def whole(folder: JobFolder, checkpoint: Path | None, warn: Callable[[str], None]) -> Path | None:
    """*checkpoint*, or the newest automatic one before it that is not damaged; what the job began from if none is."""
    if checkpoint is not None and checkpoint.parent != folder.checkpoints:
        return checkpoint
    damaged = []
    for path in reversed(folder.automatic_checkpoints()):
        if checkpoint is None or path > checkpoint:
            continue
        if (error := _damage(path)) is None:
            break
        damaged.append((error, _set_aside(path, DAMAGED)))
    else:
        path = None
    start = path or folder.began_from()
    for error, kept in damaged:
        warn(f"{error} It is kept as {kept.name}. The job continues from {name_of(start)}.")
    return start


def is_damaged(folder: JobFolder, checkpoint: Path | None) -> bool:
    """Whether *checkpoint* is one of the job's own that has been damaged since it was chosen."""
    if checkpoint is None or checkpoint.parent != folder.checkpoints:
        return False
    try:
        return _damage(checkpoint) is not None
    except LaunchError:
        return False  # it can't be known


def chosen(folder: JobFolder, choice: str) -> Path:
    """The checkpoint that ``--from-checkpoint`` names: one of the job's by its step, or a file."""
    own = {step_of(path): path for path in folder.automatic_checkpoints()}
    if choice.isdecimal() and int(choice) in own:
        return checked(own[int(choice)])
    if choice.isdecimal() and not Path(choice).exists():
        has = ", ".join(map(str, own)) or "none"
        raise LaunchError(f"job {folder.path.name} has no checkpoint of step {choice}. It has: {has}; or name a file.")
    path = checked(Path(choice))
    return next((checkpoint for checkpoint in own.values() if checkpoint.samefile(path)), path)


def checked(path: Path) -> Path:
    """*path*, in full, if it is a whole checkpoint."""
    if not path.is_file():
        raise LaunchError(f"--from-checkpoint {path}: there is no such file")
    try:
        sealed_files.check(path)
    except CheckpointError as error:
        raise LaunchError(f"--from-checkpoint: {error}") from error
    return path.absolute()


def set_newer_aside(folder: JobFolder, checkpoint: Path) -> list[Path]:
    """The job goes on from *checkpoint*, so that no later one may be taken for its newest."""
    own = folder.automatic_checkpoints()
    return [_set_aside(path, ASIDE) for path in own if checkpoint not in own or path > checkpoint]


def _damage(path: Path) -> str | None:
    try:
        sealed_files.check(path)
        for part in sorted(sealed_files.parts_folder(path).glob("*.pt")):
            sealed_files.check(part)
    except CheckpointError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno != errno.EIO:  # who knows what is in it
            raise LaunchError(f"{error} If it can't be, choose another: --from-checkpoint STEP.") from error
        return str(error)
    return None


def _set_aside(path: Path, suffix: str) -> Path:
    kept = path.with_name(path.name + suffix)
    if (parts := sealed_files.parts_folder(path)).is_dir():
        shutil.rmtree(sealed_files.parts_folder(kept), ignore_errors=True)  # of one that was set aside before
        parts.rename(sealed_files.parts_folder(kept))
    return path.rename(kept)
