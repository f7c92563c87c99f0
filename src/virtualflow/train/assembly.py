"""How a Trainer's engine is put together: the objects that hold its state, and what makes the steps of each phase."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from virtualflow.train.audit import Audit
from virtualflow.train.buffers import Buffers
from virtualflow.train.committed import Live
from virtualflow.train.exact_reduction import ExactReduction
from virtualflow.train.fast_reduction import FastReduction
from virtualflow.train.pace import Pace
from virtualflow.train.peers import Peers
from virtualflow.train.phases import Phase
from virtualflow.train.reduction import Reduction
from virtualflow.train.samples import Samples
from virtualflow.train.settings import Settings
from virtualflow.train.sharded.sharded_reduction import ShardedReduction
from virtualflow.train.sharded.shards import Shards
from virtualflow.train.state import Optimizers, Parts, named_parameters
from virtualflow.train.step import StepRunner
from virtualflow.train.step_metrics import MetricNames
from virtualflow.train.step_settings import StepSettings
from virtualflow.train.undeclared_state import UndeclaredState
from virtualflow.train.variables import Variables


def live_state(
    parts: Parts,
    optimizers: Optimizers,
    state: tuple[Any, ...],
    grad_scaler: torch.amp.GradScaler | None,
    reduction: str,
    phases: Iterable[str],
    virtual_nodes: int,
    shards: Shards | None,
    peers: Peers,
) -> Live:
    """The objects that hold the state of a job, with a reduction of the chosen type for each of *phases*."""
    buffers = Buffers(parts)
    settings = Settings(parts, optimizers, state)
    make: type[Reduction] = ExactReduction if reduction == "exact" else FastReduction
    parameters = named_parameters(parts.model)
    reductions: dict[str, Reduction]
    if shards is None:
        reductions = {phase: make(parameters, buffers, virtual_nodes) for phase in phases}
    else:
        reductions = {phase: ShardedReduction(parameters, buffers, virtual_nodes, shards, peers) for phase in phases}
    variables = Variables(parts, (*optimizers, grad_scaler, *state))
    return Live(
        parts,
        optimizers,
        reductions,
        buffers,
        settings,
        state,
        grad_scaler,
        Samples(),
        variables,
        MetricNames(),
        shards,
    )


def step_runners(
    live: Live,
    phases: Iterable[Phase],
    undeclared: Iterable[UndeclaredState],
    settings: partial[StepSettings],
    peers: Peers,
    pace: Pace,
) -> dict[str, StepRunner]:
    """What makes the steps of each phase, by its name. *settings* lack what is the phase's own."""
    audit = peers.membership.job.description.audit
    reductions = {name: reduction for name, reduction in live.reductions.items() if isinstance(reduction, Reduction)}
    return {
        phase.name: StepRunner(
            live.parts,
            phase.optimizers,
            reductions[phase.name],
            live.buffers,
            settings(loss_fn=phase.loss_fn, phase=phase.name),
            live.grad_scaler,
            peers,
            Audit() if audit else None,
            pace,
            beside,
            live.metric_names,
            live.shards,
        )
        for phase, beside in zip(phases, undeclared, strict=True)
    }
