"""Writes a job's files: once, by the lead, and known to be written on every worker."""

from __future__ import annotations

import copy
import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from virtualflow.core.membership import JobContext
from virtualflow.errors import CheckpointError
from virtualflow.train import checkpoint, committed
from virtualflow.train.committed import Live
from virtualflow.train.early_results import Recorded
from virtualflow.train.part_files import BLOCKS, UNITS, remove_old_parts, remove_parts, write_parts
from virtualflow.train.peers import Peers
from virtualflow.train.position import Loop, Position
from virtualflow.train.sharded.collection import job_digest


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a job stood, and all of its state but the tensors, of which it has the digest."""

    position: Position
    digest: str
    contents: dict[str, Any]


class Checkpoints:
    """Checkpoints that the script asks for, and automatic ones, of which the last two are kept."""

    def __init__(
        self, job: JobContext, facts: dict[str, Any], live: Live, loop: Loop, peers: Peers, recorded: Recorded
    ) -> None:
        self._folder = job.folder / "checkpoints"
        self._facts = facts
        self._live = live
        self._loop = loop
        self._peers = peers
        self._recorded = recorded
        self._end_of_pass: Mark | None = None
        self._saved: dict[Path, list[tuple[str, str]]] = {}  # after this epoch's batches: with which settings

    def save(self, path: Path) -> None:
        """Write the job's state to *path*."""
        parts = self._parts(path, self._loop.position)
        self.write_once("save", lambda: self._write(path, self._contents(self._loop.position) | parts))
        if self._loop.in_epochs and self._loop.position.finished:
            self._saved[path] = list(self._live.settings.described())

    def complete_saves(self) -> None:
        """A save after the batches counts the epoch as finished, so what the script did after it belongs to it too."""
        saved, self._saved = self._saved, {}
        for path, settings in saved.items():
            if settings != list(self._live.settings.described()):
                self._amend(path)

    def write_automatic(self) -> None:
        """Write an automatic checkpoint, if nobody has yet, for the one Trainer that can be resumed."""
        if len(self._peers.under_way) > 1:
            raise CheckpointError(
                "a job that trains with several Trainers at a time can't be resumed in the middle: a checkpoint holds "
                "where one of them stands. Started again from the beginning, it gives the same models; trainer.save "
                "writes each of them."
            )
        if not self._loop.is_resumable:
            return
        position = self._loop.position
        path = self._automatic(position)
        parts = self._parts(path, position)
        write = partial(self._write_automatic, path, lambda: self._contents(position) | parts)
        if parts:  # all workers are here
            self.write_once("save", write)
        else:
            write()

    def mark_end_of_pass(self, digest: str) -> None:
        """Remember where the job stands, for ``write_end_of_pass``."""
        position = replace(self._loop.position)
        settings = self._live.settings.take_copy()
        contents = {"position": asdict(position), "settings": settings, "top": self._loop.top}
        self._end_of_pass = Mark(position, digest, contents | copy.deepcopy(self._calls()))

    def write_end_of_pass(self) -> None:
        """The script has ended without a coordinator: what came after its last step is done again."""
        mark, step = self._end_of_pass, self._loop.position.global_step
        if mark is None or mark.position.global_step != step or self._live.stages is not None:
            return  # nothing was trained that is not kept; or, with stages, it takes all workers, who may be gone
        if self._live.shards is not None and self._peers.group is not None:
            raise CheckpointError(
                f"step {step} can't be kept: the optimizer's state is spread over workers that have nobody to "
                "bring them together any more. The last checkpoint is what is left."
            )
        if mark.digest != job_digest(self._live, self._loop, self._peers):
            raise CheckpointError(
                f"step {step} can't be gone on from: the script has changed the model after its last step."
            )
        path = self._automatic(mark.position)
        parts = self._parts(path, mark.position)
        self._write_automatic(path, lambda: self._contents(mark.position) | mark.contents | parts)

    def _automatic(self, position: Position) -> Path:
        return self._folder / f"step-{position.global_step:09d}.pt"

    def _write_automatic(self, path: Path, contents: Callable[[], dict[str, Any]]) -> None:
        with self._one_at_a_time():
            if not path.exists():
                self._write(path, contents())
            for old in sorted(path.parent.glob("step-*.pt"))[:-2]:
                old.unlink(missing_ok=True)
                remove_parts(old)

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        """Where nobody is left to say who the lead is, several may want to write the same."""
        try:
            file = (self._folder.parent / "keeping").open("w")
        except OSError as error:
            raise CheckpointError(f"cannot write to {self._folder.parent}: {error}") from error
        with file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            yield

    def _amend(self, path: Path) -> None:
        """Give a checkpoint that was saved at this position the settings as they are now."""

        def write() -> None:
            saved = checkpoint.read(path, self._live.parts.device, mapped=self._live.shards is not None)
            if saved["position"] == asdict(self._loop.position):  # else another job has written there since
                checkpoint.write(path, saved | {"settings": self._live.settings.take()})

        self.write_once("save", write)

    def write_once(self, call: str, write: Callable[[], None]) -> None:
        """Let the lead *write*; raise on every worker if it could not."""
        self._peers.once(call, self._loop.position.global_step, write)

    def _parts(self, path: Path, position: Position) -> dict[str, Any]:
        """What belongs into a checkpoint besides, where no worker holds everything: the names of its parts."""
        live, step = self._live, position.global_step
        if live.files is not None:
            return {UNITS: write_parts(self._peers, path, step, live.files.parts)}
        if live.shards is not None:
            return {BLOCKS: write_parts(self._peers, path, step, live.shards.part_to_write)}
        return {}

    def _write(self, path: Path, contents: dict[str, Any]) -> None:
        checkpoint.write(path, contents)
        remove_old_parts(path, contents)

    def _contents(self, position: Position) -> dict[str, Any]:
        return {"job": self._facts, **committed.take(self._live, position), "top": self._loop.top, **self._calls()}

    def _calls(self) -> dict[str, Any]:
        return {"between": self._recorded.between, "results": self._recorded.section}
