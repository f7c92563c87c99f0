"""Writes a job's files: once, by the lead, and known to be written on every worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from virtualflow.core.membership import Job
from virtualflow.errors import CheckpointError
from virtualflow.train import checkpoint, snapshot
from virtualflow.train.peers import Peers
from virtualflow.train.recorded import Recorded
from virtualflow.train.snapshot import Live, Position


class Keeper:
    """Checkpoints that the script asks for, and automatic ones, of which the last two are kept."""

    def __init__(self, job: Job, facts: dict[str, Any], live: Live, peers: Peers, recorded: Recorded) -> None:
        self._folder = job.folder / "checkpoints"
        self._facts = facts
        self._live = live
        self._peers = peers
        self._recorded = recorded

    def save(self, path: Path, position: Position, top: dict[str, Any] | None) -> None:
        self.write_once("save", path, position, lambda: checkpoint.write(path, self._contents(position, top)))

    def keep(self, position: Position, top: dict[str, Any] | None) -> None:
        """Write an automatic checkpoint, if nobody has yet, and drop all but the last two."""
        path = self._folder / f"step-{position.global_step:09d}.pt"
        if not path.exists():
            checkpoint.write(path, self._contents(position, top))
        for old in sorted(path.parent.glob("step-*.pt"))[:-2]:
            old.unlink(missing_ok=True)

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
        taken = snapshot.take(self._live, position)
        calls = {"between": self._recorded.between, "results": self._recorded.section}
        return {"job": self._facts, **taken, "top": top, **calls}
