"""Files of a job whose model is cut: a checkpoint in parts, each written by a device that holds it, and an export."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from virtualflow.core.membership import Group
from virtualflow.errors import CheckpointError
from virtualflow.train import checkpoint, committed
from virtualflow.train.peers import Peers
from virtualflow.train.stages.stage_moves import Pair
from virtualflow.train.stages.staged_state import StagedState

PARTS = ".parts"  # after the name of a checkpoint: the folder that holds its units


class StagedFiles:
    """Writes what no worker holds as a whole."""

    def __init__(self, state: StagedState, peers: Peers) -> None:
        self._state = state
        self._peers = peers

    def write_parts(self, path: Path, global_step: int) -> list[str]:
        """Write the units that belong to a checkpoint at *path*; return their places beside it, in order.

        The checkpoint itself, which names them, comes after: until then the one that was there is whole.
        """
        folder = Path(f"{path.name}{PARTS}")
        names = [str(folder / f"{global_step:09d}-{unit:03d}.pt") for unit in range(len(self._state.cut.units))]

        def write() -> None:
            for name, unit in zip(names, self._state.cut.units, strict=True):
                if unit.holders(self._state.cells)[0] == self._peers.membership.device:
                    checkpoint.write(path.parent / name, checkpoint.on_host({"unit": self._state.held.take(unit)}))

        self._together("save", global_step, write, path)
        return names

    def remove_old_parts(self, path: Path, names: list[str]) -> None:
        """The checkpoint at *path* is written, and made of *names*."""
        for old in (path.parent / f"{path.name}{PARTS}").glob("*.pt"):
            if str(old.relative_to(path.parent)) not in names:
                old.unlink(missing_ok=True)

    def read(self, parts: list[str]) -> None:
        """Set what this worker holds to the units in *parts*."""
        for part, unit in zip(parts, self._state.cut.units, strict=True):
            if unit in self._state.held.units:
                self._state.held.put(unit, checkpoint.read(Path(part))["unit"])

    def export(self, path: Path, global_step: int) -> None:
        """Have the lead write the ``state_dict`` of all stages, by stage and name."""

        def write() -> None:
            whole = self._gathered()
            if self._peers.is_lead:
                checkpoint.write_atomically(path, whole)

        self._together("export", global_step, write, path)

    def _gathered(self) -> dict[str, Any]:
        """The stages' tensors, on the lead: one stage after another, from a device that holds it."""
        state, membership, group = self._state, self._peers.membership, self._peers.group
        whole: dict[str, Any] = {}
        for stage in range(state.cut.count):
            holder = state.cells.holders(stage)[0]
            if holder == membership.device:
                state.held.renew_buffers(stage)
                tensors = state.held.modules[stage].state_dict()
                mine = checkpoint.on_host({f"{stage}.{name}": value for name, value in tensors.items()})
                if group is None or self._peers.is_lead:
                    whole |= mine
                else:
                    committed.send(mine, cast(Group, Pair(group, 0, sends=True)))
            elif self._peers.is_lead:
                assert group is not None
                pair = Pair(group, state.rank_of(holder), sends=False)
                whole |= committed.receive(cast(Group, pair), torch.device("cpu"))
        return whole

    def _together(self, call: str, global_step: int, write: Callable[[], None], path: Path) -> None:
        """Have every worker *write*; raise CheckpointError on all if one could not."""
        failures: list[CheckpointError] = []

        def attempt() -> Tensor:
            failures.clear()
            self._peers.announce(call, global_step).check()
            self._state.settle()
            try:
                write()
            except CheckpointError as error:
                failures.append(error)
            failed = torch.tensor([len(failures)])
            if self._peers.group is not None:
                self._peers.group.max(failed).wait()
            return failed

        if int(self._peers.agree(attempt)):
            raise failures[-1] if failures else CheckpointError(f"another worker could not write its part of {path}")


def remove_parts(path: Path) -> None:
    """Remove the parts of a checkpoint that is gone."""
    shutil.rmtree(f"{path}{PARTS}", ignore_errors=True)
