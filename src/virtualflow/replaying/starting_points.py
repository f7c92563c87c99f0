"""From where a run can be gone through again: its checkpoints, and its beginning."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from virtualflow.errors import CheckpointError
from virtualflow.events import Saved, StreamEvent
from virtualflow.job.checkpoints import step_of
from virtualflow.job.folder import JobFolder
from virtualflow.program.manifest import Program
from virtualflow.system import sealed_files


def starting_points(folder: JobFolder, events: Iterable[StreamEvent], step: int) -> Iterator[tuple[int, Path | None]]:
    """How many steps each whole checkpoint before *step* has behind it, the last one first; then the beginning."""
    found = {path: number for path in folder.automatic_checkpoints() if (number := step_of(path)) is not None}
    script = folder.spec().description.script
    directory = Program.of(folder.snapshot, script).directory or os.path.dirname(os.path.abspath(script))
    found |= {Path(directory, event.path): event.step for event in events if isinstance(event, Saved)}
    for path, number in sorted(found.items(), key=lambda item: item[1], reverse=True):
        if number <= step and _is_whole(path):
            yield number, path
    yield 0, folder.began_from()


def kept_for(folder: JobFolder, checkpoint: Path | None) -> Path | None:
    """*checkpoint* as one of *folder*'s own, if it may be: the job that wrote it may remove it."""
    if checkpoint is None or step_of(checkpoint) is None:
        return checkpoint
    folder.checkpoints.mkdir()
    kept = folder.checkpoints / checkpoint.name
    try:
        os.link(checkpoint, kept)
        if (parts := sealed_files.parts_folder(checkpoint)).is_dir():
            shutil.copytree(parts, sealed_files.parts_folder(kept), copy_function=os.link)
    except OSError:  # another file system
        return checkpoint
    return kept


def _is_whole(path: Path) -> bool:
    try:
        sealed_files.check(path)
        for part in sealed_files.parts_folder(path).glob("*.pt"):
            sealed_files.check(part)
    except (OSError, CheckpointError):
        return False
    return True
