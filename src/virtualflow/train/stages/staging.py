"""How a Trainer whose model is cut into stages is put together, and what it refuses."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from virtualflow.core.cell_schedule import check_schedule
from virtualflow.core.membership import JobContext
from virtualflow.core.memory_needs import MemoryNeeds
from virtualflow.core.profiled_grid import GridWanted
from virtualflow.core.wording import counted
from virtualflow.errors import ConfigError
from virtualflow.train import preparation
from virtualflow.train.committed import Live
from virtualflow.train.instruments import Measurement
from virtualflow.train.pace import Pace
from virtualflow.train.peers import Peers
from virtualflow.train.stages.cell_runs import CellRunner, StageLoss
from virtualflow.train.stages.held_stages import HeldStages
from virtualflow.train.stages.job_optimizer import JobOptimizer
from virtualflow.train.stages.loss_scale import LossScale
from virtualflow.train.stages.stage_cut import Cut, Stages
from virtualflow.train.stages.staged_files import StagedFiles
from virtualflow.train.stages.staged_inference import StagedInference
from virtualflow.train.stages.staged_state import GridByProfile, GridChoice, StagedState, Unheld
from virtualflow.train.stages.staged_step import StagedRunner, StagedSettings
from virtualflow.train.stages.unit_sums import JobSums


@dataclass(frozen=True, slots=True)
class Staging:
    """What the script says of its stages."""

    cut: Cut
    optimizer: JobOptimizer
    loss_fn: StageLoss
    copies: int
    schedule: str
    recompute: bool

    @classmethod
    def of(
        cls,
        stages: Stages,
        tied: Mapping[str, str],
        optimizer: Any,
        loss_fn: Any,
        copies: int,
        schedule: str,
        recompute: bool,
        refused: Mapping[str, bool],
        job: JobContext,
    ) -> Staging:
        """Check the arguments of a Trainer with stages; *refused* are those that were given and have no meaning yet."""
        for name, given in refused.items():
            if given:
                raise ConfigError(f"{name} is not supported together with stages=. See docs/limits.md.")
        _check_job(job)
        if not callable(optimizer) or isinstance(optimizer, torch.optim.Optimizer):
            raise ConfigError(
                f"with stages, optimizer= is a function, not a {type(optimizer).__name__}, since each device updates "
                "what it holds: optimizer=lambda params: torch.optim.AdamW(params, lr=3e-4)."
            )
        if not callable(loss_fn):
            raise ConfigError("with stages, loss_fn(output, batch) gets the last stage's output: give a function")
        if copies < 1:
            raise ConfigError(f"copies={copies}, expected at least 1: on how many devices each stage is kept")
        check_schedule(schedule)
        cut = Cut(stages, tied)
        return cls(cut, JobOptimizer(optimizer, cut.stand_ins), loss_fn, copies, schedule, recompute)

    @property
    def facts(self) -> dict[str, Any]:
        """What makes a job this one."""
        return {"stages": self.cut.count, "tied": dict(sorted(self.cut.homes.items()))}

    @property
    def parameters(self) -> int:
        return sum(self.cut.shapes[name].numel() for unit in self.cut.units for name in unit.parameters)


class StagedEngine:
    """The parts of a Trainer's engine that are others where the model is cut."""

    def __init__(
        self,
        staging: Staging,
        live: Live,
        peers: Peers,
        device: torch.device,
        pace: Pace,
        seed: int,
        node_sizes: Sequence[int],
        trainer: int,
        clip_grad_norm: float | None,
        on_nan: str,
    ) -> None:
        cut, virtual_nodes = staging.cut, len(node_sizes)
        if cut.is_built:
            preparation.share_initial_model(peers, cut.modules)
        held = HeldStages(cut, staging.optimizer, seed, device)
        sums = JobSums(cut, virtual_nodes)
        job = peers.membership.job
        memory = _stated_memory(job, cut.count, staging.copies) if trainer == 1 else None
        is_measured = isinstance(job.instruments, Measurement)
        held_by = Unheld if is_measured else GridChoice
        limit = job.description.device_bytes
        by_profile = _by_profile(peers, staging, node_sizes) if trainer == 1 and not is_measured else None
        choice = held_by(cut.count, virtual_nodes, staging.copies, _rows_by_hand(job), memory, limit, by_profile)
        self.state = StagedState(cut, held, sums, choice, peers, device)
        self.live = replace(live, stages=self.state, files=StagedFiles(self.state, peers), reductions={"": sums})
        loss_scale = LossScale(live.grad_scaler, device)
        cells = CellRunner(cut, held, sums, staging.loss_fn, loss_scale, pace, seed, recompute=staging.recompute)
        settings = StagedSettings(seed, virtual_nodes, trainer, clip_grad_norm, on_nan, staging.schedule)
        self.runner = StagedRunner(
            self.state, cells, staging.optimizer, loss_scale, pace, settings, peers, live.metric_names, live.parts
        )
        self.inference = StagedInference(self.state, seed, peers)
        if not peers.membership.joining and not is_measured:
            self.state.warn_of_risk()


def refuse_without_stages(job: JobContext, given: Mapping[str, bool]) -> None:
    """A mapping with rows is for a model that is cut, and so are the arguments that are *given*."""
    for name, is_given in given.items():
        if is_given:
            raise ConfigError(f"{name} belongs to stages=, and this Trainer has none.")
    if job.description.cells is not None:
        raise ConfigError(
            "--mapping has a row for each of several stages, and this Trainer has none. Give one device index for each "
            "virtual node, or cut the model: vf.Trainer(stages=[...], ...)."
        )
    memory = job.description.memory
    if memory is not None and memory.is_cut:
        warnings.warn(
            f"the job was submitted with the memory of {counted(len(memory.stages), 'stage')}, and this Trainer has "
            "none: each device holds the whole model. State one size with --memory.",
            stacklevel=4,
        )


def _rows_by_hand(job: JobContext) -> tuple[tuple[int, ...], ...] | None:
    """The grid that was given by hand; one row, a mapping of virtual nodes, counts for all stages."""
    description = job.description
    if description.cells is None and description.owners is not None:
        return (description.owners,)
    return description.cells


def _by_profile(peers: Peers, staging: Staging, node_sizes: Sequence[int]) -> GridByProfile | None:
    """How the job's profile chooses a grid on any devices, if it has one of this model on such devices."""
    membership = peers.membership
    job = membership.job
    if job.grids is None:
        return None
    wanted = GridWanted(
        staging.cut.count,
        staging.parameters,
        max(node_sizes),
        len(node_sizes),
        staging.copies,
        staging.schedule,
        job.description.device_bytes,
    )
    if (why_not := job.grids.why_not(wanted, membership.devices)) is not None:
        if not membership.joining:
            warnings.warn(
                f"the grid of cells is the usual one, since the script's profile does not suit it: {why_not}",
                stacklevel=4,
            )
        return None
    return partial(job.grids.best, wanted)


def _stated_memory(job: JobContext, stages: int, copies: int) -> MemoryNeeds | None:
    """What the job's owner has stated of its stages. Raises ConfigError if that is of another cut."""
    memory = job.description.memory
    if memory is None or not memory.is_cut:
        return None
    if (len(memory.stages), memory.copies) != (stages, copies):
        raise ConfigError(
            f"the job was submitted with the memory of {counted(len(memory.stages), 'stage')} and --copies "
            f"{memory.copies}, but this Trainer has {counted(stages, 'stage')} and copies={copies}. Submit it with "
            "--memory and --copies of these."
        )
    return memory


def _check_job(job: JobContext) -> None:
    if job.description.audit:
        raise ConfigError("--audit is not supported together with stages=: it compares whole models. Leave it out.")
