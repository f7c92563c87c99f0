"""Going on from a checkpoint: one of VirtualFlow's own, or the part that another framework's checkpoint lacks."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any

from virtualflow.errors import CheckpointError
from virtualflow.train import checkpoint, committed
from virtualflow.train.committed import Live
from virtualflow.train.comparisons import Comparisons
from virtualflow.train.early_results import Recorded
from virtualflow.train.journal import Journal
from virtualflow.train.part_files import with_paths
from virtualflow.train.position import Loop, Position


class Resuming:
    """Sets a job to where a checkpoint says that it stood. *facts* say which job this is."""

    def __init__(
        self,
        facts: dict[str, Any],
        live: Live,
        loop: Loop,
        recorded: Recorded,
        comparisons: Comparisons,
        journal: Journal,
    ) -> None:
        self._facts = facts
        self._live = live
        self._loop = loop
        self._recorded = recorded
        self._comparisons = comparisons
        self._journal = journal

    def load(self, path: Path, *, force: bool = False) -> None:
        """Go on from *path*; *force* takes the state of a job with another seed or batch."""
        is_sharded = self._live.shards is not None  # then nobody takes all of it into memory
        saved = with_paths(checkpoint.read(path, self._live.parts.device, mapped=is_sharded), path)
        if not force:
            checkpoint.check_same_job(path, saved["job"], self._facts)
        else:
            saved["samples"] = {}
        if force and saved["job"].get("node_sizes") != self._facts["node_sizes"]:
            saved["grids"] = {}
        inside = Position(**saved["position"]).is_inside
        if inside:
            # For the script, which may look at it. It comes once more where the loop is, after what the script does at
            # the top of the epoch, which may give the model the form that this needs.
            with contextlib.suppress(CheckpointError):
                kept = {"optimizers": saved["optimizers"]} if is_sharded else {}
                committed.put(self._live, copy.deepcopy({**saved, **dict.fromkeys(kept)}) | kept)
        else:
            committed.put(self._live, saved)
        self._loop.go_to(saved, resumed=True)
        self._recorded.replay([*saved["between"], *(saved["results"] if inside else [])])
        self._comparisons.compare("load", "after load")
        self._journal.loaded(self._loop.position, path)

    def own_state(self) -> dict[str, Any]:
        """What a checkpoint of another framework lacks, besides model and optimizer."""
        return {"job": self._facts, **committed.take_own(self._live, self._loop.position)}

    def put_own_state(self, saved: dict[str, Any]) -> None:
        """Go on from what ``own_state`` returned. Raises CheckpointError if it is of another job."""
        checkpoint.check_same_job(Path("the checkpoint"), saved["job"], self._facts)
        self._loop.position = Position(**saved["position"])
        committed.put_own(self._live, saved)
