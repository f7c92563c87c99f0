"""The journal of one Trainer: its event stream, which is the run's certificate, and warnings that are given once."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from virtualflow.core.cells import Cells
from virtualflow.core.mapping import DeviceId
from virtualflow.core.membership import Membership
from virtualflow.core.seeds import derive
from virtualflow.core.sharding import EpochPlan, GlobalBatch
from virtualflow.core.verdicts import SentinelVerdict
from virtualflow.events import (
    CorruptionFound,
    EpochEnded,
    EpochStarted,
    Evaluated,
    EventLog,
    Loaded,
    Regrouped,
    ReplicasAligned,
    RunStarted,
    Saved,
    StepDone,
    stream_of,
)
from virtualflow.events.certificate import extend_chain
from virtualflow.loggers import RunLogger, Tool
from virtualflow.train.peers import Peers
from virtualflow.train.position import Position
from virtualflow.train.step import StepResult


class HasCells(Protocol):
    """How a model in stages is mapped."""

    @property
    def copies(self) -> int: ...
    def cells_on(self, devices: Sequence[DeviceId]) -> Cells: ...


@dataclass(frozen=True, slots=True)
class _Layout:
    """Who runs what now, as events have it."""

    mapping: list[str]
    waves: int
    cells: list[list[str]] = field(default_factory=list)
    shadows: list[list[str]] = field(default_factory=list)


class Journal:
    """Records what a Trainer of *virtual_nodes* does. Every worker keeps one; the lead's is written.

    *grid* is for a model that is cut.
    """

    def __init__(
        self,
        peers: Peers,
        trainer: int,
        virtual_nodes: int,
        tools: Sequence[Tool] = (),
        grid: HasCells | None = None,
    ) -> None:
        self._peers = peers
        self._virtual_nodes = virtual_nodes
        self._grid = grid
        job = self._membership.job
        stream = stream_of(job.folder, trainer)
        run = job.id if trainer == 1 else f"{job.id}-{trainer}"
        self._log = EventLog(stream, lambda: peers.is_lead, [RunLogger(tool, run, stream) for tool in tools])
        self._changes = 0  # of the membership, that are recorded
        self._warned: set[str] = set()

    @property
    def path(self) -> Path:
        return self._log.path

    @property
    def _membership(self) -> Membership:
        return self._peers.membership

    def run_started(self, facts: dict[str, Any]) -> None:
        devices = list(self._membership.devices)
        layout = self._layout(devices)
        copies = self._grid.copies if self._grid is not None else 1
        layout_facts = (layout.mapping, layout.waves, layout.cells, layout.shadows, copies)
        self._log.write(RunStarted(facts, devices, *layout_facts))

    def _layout(self, devices: Sequence[DeviceId]) -> _Layout:
        if self._grid is None:
            mapping = self._membership.mapping(self._virtual_nodes)
            return _Layout(list(mapping.devices), mapping.waves)
        cells = self._grid.cells_on(devices)
        waves = max(len(cells.cells_of(device)) for device in cells.devices)
        return _Layout([], waves, cells.rows, [list(shadows) for shadows in cells.shadows])

    def epoch_started(self, epoch: EpochPlan, epochs: int, first_step: int) -> None:
        self._log.write(EpochStarted(epoch.number, epochs, epoch.steps, first_step))

    def step_done(self, position: Position, batch: GlobalBatch, result: StepResult, seconds: float) -> str:
        """Record a committed step; return the certificate's chain after it."""
        loss_bits = result.loss.hex()
        norm_bits = result.gradient_norm.hex() if result.gradient_norm is not None else None
        ids = f"{derive(0, *((result.phase,) if result.phase else ()), *result.ids):08x}"
        chain = extend_chain(position.chain, loss_bits, norm_bits, ids)
        self._log.write(
            StepDone(
                step=position.global_step,
                epoch=batch.epoch,
                loss=result.loss,
                loss_bits=loss_bits,
                norm_bits=norm_bits,
                ids=ids,
                chain=chain,
                examples=batch.examples,
                seconds=round(seconds, 6),
                attempts=result.attempts,
                accumulator=result.accumulator,
                metrics=result.metrics,
                phase=result.phase,
                batch=batch.step,
            )
        )
        return chain

    def regrouped(self, global_step: int) -> None:
        """Record the changes of the membership since the last time."""
        for change in self._membership.changes[self._changes :]:
            layout = self._layout(change.devices)
            self._log.write(
                Regrouped(
                    change.generation,
                    global_step,
                    change.cause,
                    list(change.devices),
                    list(change.joined),
                    list(change.left),
                    layout.mapping,
                    change.pause_ms,
                    layout.cells,
                    layout.shadows,
                )
            )
        self._changes = len(self._membership.changes)

    def epoch_ended(self, epoch: EpochPlan, global_step: int, digest: str) -> None:
        self._log.write(EpochEnded(epoch.number, global_step - 1, digest))

    def evaluated(self, global_step: int, name: str, value: float) -> None:
        self._log.write(Evaluated(global_step, value, name))

    def saved(self, global_step: int, path: Path) -> None:
        self._log.write(Saved(global_step, str(path)))

    def loaded(self, position: Position, path: Path) -> None:
        self._log.write(Loaded(position.global_step, str(path), position.chain))

    def replicas_aligned(self, global_step: int, ranks: list[int]) -> None:
        self._log.write(ReplicasAligned(global_step, [str(rank) for rank in ranks]))

    def verdict_reached(self, global_step: int, verdict: SentinelVerdict) -> None:
        self._log.write(
            CorruptionFound(global_step, verdict.device, verdict.what, verdict.action, verdict.node, f"{verdict.text}.")
        )

    def warn_once(self, text: str) -> None:
        """Warn the script, on the lead alone, of what it can change."""
        if self._peers.is_lead and text not in self._warned:
            self._warned.add(text)
            warnings.warn(text, stacklevel=3)
