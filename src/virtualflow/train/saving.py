"""Writes a job's files: once, by the lead, and known to be written on every worker."""

from __future__ import annotations

import copy
import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from virtualflow.core.membership import JobContext
from virtualflow.errors import CheckpointError
from virtualflow.train import checkpoint, committed
from virtualflow.train.committed import Live, Position
from virtualflow.train.early_results import Recorded
from virtualflow.train.peers import Peers


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a job stood, and all of its state but the tensors, of which it has the digest."""

    position: Position
    digest: str
    contents: dict[str, Any]


class Keeper:
    """Checkpoints that the script asks for, and automatic ones, of which the last two are kept."""

    def __init__(self, job: JobContext, facts: dict[str, Any], live: Live, peers: Peers, recorded: Recorded) -> None:
        self._folder = job.folder / "checkpoints"
        self._facts = facts
        self._live = live
        self._peers = peers
        self._recorded = recorded

    def save(self, path: Path, position: Position, top: dict[str, Any] | None) -> None:
        self.write_once("save", path, position, lambda: checkpoint.write(path, self._contents(position, top)))

    def keep(self, position: Position, top: dict[str, Any] | None) -> None:
        """Write an automatic checkpoint, if nobody has yet, and drop all but the last two."""
        self._keep(position, lambda: self._contents(position, top))

    def mark(self, position: Position, top: dict[str, Any] | None, digest: str) -> Mark:
        """Where the job stands, for ``keep_marked``."""
        position = replace(position)
        settings = self._live.settings.take_copy()
        contents = {"position": asdict(position), "settings": settings, "top": top, **copy.deepcopy(self._calls())}
        return Mark(position, digest, contents)

    def keep_marked(self, mark: Mark) -> None:
        """As ``keep``, where the job stood, if its tensors are still those."""
        self._keep(mark.position, lambda: self._contents(mark.position, None) | mark.contents)

    def _keep(self, position: Position, contents: Callable[[], dict[str, Any]]) -> None:
        path = self._folder / f"step-{position.global_step:09d}.pt"
        with self._one_at_a_time():
            if not path.exists():
                checkpoint.write(path, contents())
            for old in sorted(path.parent.glob("step-*.pt"))[:-2]:
                old.unlink(missing_ok=True)

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

    def amend(self, path: Path, position: Position) -> None:
        """Give a checkpoint that was saved at this position the settings as they are now."""

        def write() -> None:
            saved = checkpoint.read(path)
            if saved["position"] == asdict(position):  # else another job has written there since
                checkpoint.write(path, saved | {"settings": self._live.settings.take()})

        self.write_once("save", path, position, write)

    def write_once(self, call: str, path: Path, position: Position, write: Callable[[], None]) -> None:
        """Let the lead *write*; raise on every worker if it could not."""
        failures: list[CheckpointError] = []

        def written() -> int:
            try:
                write()
            except CheckpointError as error:
                failures.append(error)
            return len(failures)

        if self._peers.from_lead(call, position.global_step, written):
            raise failures[-1] if failures else CheckpointError(f"the lead worker could not write {path}")

    def _contents(self, position: Position, top: dict[str, Any] | None) -> dict[str, Any]:
        taken = committed.take(self._live, position)
        return {"job": self._facts, **taken, "top": top, **self._calls()}

    def _calls(self) -> dict[str, Any]:
        return {"between": self._recorded.between, "results": self._recorded.section}
