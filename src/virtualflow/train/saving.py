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
from virtualflow.train.peers import Peers
from virtualflow.train.position import Loop, Position
from virtualflow.train.sharded.collection import collected_optimizers, job_digest
from virtualflow.train.stages.staged_files import remove_parts


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
        self._collected: list[dict[str, Any]] | None = None  # the optimizers' state, on the lead, while it is written
        self._saved: dict[Path, list[tuple[str, str]]] = {}  # after this epoch's batches: with which settings

    def save(self, path: Path) -> None:
        """Write the job's state to *path*."""
        parts = self._parts(path, self._loop.position)
        self.write_once("save", lambda: self._write(path, self._contents(self._loop.position) | parts), whole=True)
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
        if self._loop.is_resumable:
            write = partial(self._write_automatic, self._loop.position, lambda: self._contents(self._loop.position))
            if self._live.shards is None:
                write()
            else:  # all workers are here
                self.write_once("save", write, whole=True)

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
        if self._live.shards is not None:
            if self._peers.group is not None:
                raise CheckpointError(
                    f"step {step} can't be kept: the optimizer's state is spread over workers that have nobody to "
                    "bring them together any more. The last checkpoint is what is left."
                )
            self._collect()
        if mark.digest != job_digest(self._live, self._loop, self._peers):
            raise CheckpointError(
                f"step {step} can't be gone on from: the script has changed the model after its last step."
            )
        self._write_automatic(mark.position, lambda: self._contents(mark.position) | mark.contents)

    def _write_automatic(self, position: Position, contents: Callable[[], dict[str, Any]]) -> None:
        path = self._folder / f"step-{position.global_step:09d}.pt"
        parts = self._parts(path, position)
        if parts and not self._peers.is_lead:
            return
        with self._one_at_a_time():
            if not path.exists():
                self._write(path, contents() | parts)
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

    def write_once(self, call: str, write: Callable[[], None], *, whole: bool = False) -> None:
        """Let the lead *write*; raise on every worker if it could not. It gets the *whole* state if it needs that."""
        failures: list[CheckpointError] = []

        def collect() -> None:
            failures.clear()
            try:
                if whole and self._live.shards is not None:
                    self._collect()
            except CheckpointError as error:  # of the lead: it is raised on all
                failures.append(error)

        def write_collected() -> None:
            if failures:
                raise failures[-1]
            write()

        try:
            self._peers.once(call, self._loop.position.global_step, write_collected, before=collect)
        finally:
            self._collected = None

    def _parts(self, path: Path, position: Position) -> dict[str, Any]:
        """With stages, what belongs into a checkpoint besides: the places of the parts that all have written."""
        if self._live.files is None:
            return {}
        return {"units": self._live.files.write_parts(path, position.global_step)}

    def _write(self, path: Path, contents: dict[str, Any]) -> None:
        checkpoint.write(path, contents)
        if self._live.files is not None:
            self._live.files.remove_old_parts(path, contents["units"])

    def _collect(self) -> None:
        """Have the optimizers' state whole on the lead."""
        assert self._live.shards is not None
        self._collected = collected_optimizers(self._live, self._live.shards, self._folder)

    def _contents(self, position: Position) -> dict[str, Any]:
        taken = committed.take(self._live, position)
        if self._collected is not None:
            taken["optimizers"] = self._collected
        return {"job": self._facts, **taken, "top": self._loop.top, **self._calls()}

    def _calls(self) -> dict[str, Any]:
        return {"between": self._recorded.between, "results": self._recorded.section}
