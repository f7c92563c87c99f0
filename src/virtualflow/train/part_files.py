"""Checkpoints in parts: written by several workers at a time, and valid once the file that names them is written."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from virtualflow.errors import CheckpointError
from virtualflow.system.sealed_files import parts_folder
from virtualflow.train import checkpoint
from virtualflow.train.peers import Peers

UNITS, BLOCKS = "units", "optimizer blocks"  # what parts hold, and where a checkpoint names them
PartWriters = Sequence[Callable[[], dict[str, Any]] | None]  # what makes the contents of each; None: another worker's


def write_parts(peers: Peers, path: Path, global_step: int, parts: Callable[[], PartWriters]) -> list[str]:
    """Write the parts of a checkpoint at *path*, all workers at a time; return their names, in order.

    They have new names each time: until the checkpoint itself is written, the one that was there before is whole.
    """

    def write() -> list[int]:
        listed, salt = parts(), torch.tensor([secrets.randbits(62)])
        if peers.group is not None:
            peers.group.broadcast(salt, 0).wait()
        for name, contents in zip(_names(global_step, int(salt), len(listed)), listed, strict=True):
            if contents is not None:
                checkpoint.write(parts_folder(path) / name, contents())
        return [int(salt), len(listed)]

    salt, count = write_together(peers, "save", global_step, path, write)
    return _names(global_step, salt, count)


def write_together(peers: Peers, call: str, global_step: int, path: Path, write: Callable[[], list[int]]) -> list[int]:
    """What all workers' *write* returns, the same everywhere; raise CheckpointError on all if one could not.

    It makes its collective calls before it writes.
    """
    failures: list[CheckpointError] = []

    def attempt() -> Tensor:
        failures.clear()
        peers.announce(call, global_step).check()
        numbers: list[int] = []
        try:
            numbers = write()
        except CheckpointError as error:
            failures.append(error)
        failed = torch.tensor([len(failures)])
        if peers.group is not None:
            peers.group.max(failed).wait()
        return torch.tensor([1] if int(failed) else [0, *numbers])

    failed, *numbers = (int(value) for value in peers.agree(attempt))
    if failed:
        raise failures[-1] if failures else CheckpointError(f"another worker could not write its part of {path}")
    return numbers


def with_paths(saved: dict[str, Any], path: Path) -> dict[str, Any]:
    """What a checkpoint at *path* holds, with the paths of its parts in place of their names."""
    folder = parts_folder(path)
    names = [name for key in (UNITS, BLOCKS) for name in saved.get(key, ())]
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise CheckpointError(
            f"{len(missing)} of {len(names)} parts of {path} are missing, such as {folder / missing[0]}. A checkpoint "
            f"in parts is a file and a folder: move {path.name} and {folder.name} together."
        )
    return saved | {key: [str(folder / name) for name in saved[key]] for key in (UNITS, BLOCKS) if key in saved}


def remove_old_parts(path: Path, saved: dict[str, Any]) -> None:
    """The checkpoint at *path* is written: of the parts that lie there, those count that it names."""
    named = {name for key in (UNITS, BLOCKS) for name in saved.get(key, ())}
    for old in parts_folder(path).glob("*.pt"):
        if old.name not in named:
            old.unlink(missing_ok=True)
    if not named:
        remove_parts(path)


def remove_parts(path: Path) -> None:
    """Remove the parts of a checkpoint that is gone."""
    shutil.rmtree(parts_folder(path), ignore_errors=True)


def _names(global_step: int, salt: int, count: int) -> list[str]:
    return [f"{global_step:09d}-{salt:016x}-{number:03d}.pt" for number in range(count)]
