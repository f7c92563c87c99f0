"""Files of a job whose model is cut: a checkpoint in parts, each written by a device that holds it, and an export."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from virtualflow.core.membership import Group
from virtualflow.train import checkpoint, committed
from virtualflow.train.part_files import PartWriters, write_together
from virtualflow.train.peers import Peers
from virtualflow.train.stages.stage_cut import Unit
from virtualflow.train.stages.stage_moves import Pair
from virtualflow.train.stages.staged_state import StagedState


class StagedFiles:
    """Writes what no worker holds as a whole."""

    def __init__(self, state: StagedState, peers: Peers) -> None:
        self._state = state
        self._peers = peers

    def parts(self) -> PartWriters:
        """What each unit's first holder writes of a checkpoint. All workers ask at a time."""
        self._state.settle()
        device = self._peers.membership.device
        units = self._state.cut.units
        return [partial(self._unit, u) if u.holders(self._state.cells)[0] == device else None for u in units]

    def _unit(self, unit: Unit) -> dict[str, Any]:
        return checkpoint.on_host({"unit": self._state.held.take(unit)})

    def read(self, parts: list[str]) -> None:
        """Set what this worker holds to the units in *parts*."""
        for part, unit in zip(parts, self._state.cut.units, strict=True):
            if unit in self._state.held.units:
                self._state.held.put(unit, checkpoint.read(Path(part))["unit"])

    def export(self, path: Path, global_step: int) -> None:
        """Have the lead write the ``state_dict`` of all stages, by stage and name."""

        def write() -> list[int]:
            self._state.settle()
            whole = self._gathered()
            if self._peers.is_lead:
                checkpoint.write_atomically(path, whole)
            return []

        write_together(self._peers, "export", global_step, path, write)

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
