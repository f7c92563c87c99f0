"""How a Trainer's engine is put together: the objects that hold its state, and what makes the steps of each phase."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from virtualflow.train import other_optimizers
from virtualflow.train.audit import Audit
from virtualflow.train.buffers import Buffers
from virtualflow.train.committed import Live
from virtualflow.train.exact_reduction import ExactReduction
from virtualflow.train.fast_reduction import FastReduction
from virtualflow.train.inference import Inference
from virtualflow.train.instruments import Engine
from virtualflow.train.preparation import Settled
from virtualflow.train.reduction import Reduction
from virtualflow.train.samples import Samples
from virtualflow.train.sentinel import Sentinel
from virtualflow.train.settings import Settings
from virtualflow.train.sharded.sharded_reduction import ShardedReduction
from virtualflow.train.sharded.shards import Shards
from virtualflow.train.stages.staging import StagedEngine, Staging
from virtualflow.train.state import named_parameters
from virtualflow.train.step import StepRunner
from virtualflow.train.step_metrics import MetricNames
from virtualflow.train.step_settings import StepChoices, StepSettings
from virtualflow.train.trained import Trained
from virtualflow.train.undeclared_state import UndeclaredState
from virtualflow.train.variables import Variables


def assemble(trained: Trained, choices: StepChoices, settled: Settled) -> Engine:
    """Put together the engine that makes the steps of what is *trained*."""
    settled.pace.check(trained.staging.cut.count if trained.staging is not None else None)
    live = _live_state(trained, choices, settled)
    settled.peers.may_leave_early = settled.peers.may_leave_early and live.shards is None
    other_optimizers.declare((*trained.optimizers, *trained.state))
    if trained.staging is not None:
        return _staged_engine(trained.staging, live, choices, settled)
    undeclared = [UndeclaredState(phase.loss_fn, live.parts, live.state) for phase in trained.phases.values()]
    return Engine(
        settled.peers,
        _step_runners(trained, live, undeclared, choices, settled),
        settled.pace,
        settled.virtual_nodes,
        live,
        partial(settled.peers.nodes, settled.virtual_nodes),
        Inference(live.parts, live.state, settled.seed, settled.peers),
        undeclared,
    )


def _staged_engine(staging: Staging, live: Live, choices: StepChoices, settled: Settled) -> Engine:
    staged = StagedEngine(
        staging,
        live,
        settled.peers,
        settled.device,
        settled.pace,
        settled.seed,
        settled.schedule.at(0),
        settled.number,
        choices.clip_grad_norm,
        choices.on_nan,
    )
    return Engine(
        settled.peers,
        {"": staged.runner},
        settled.pace,
        settled.virtual_nodes,
        staged.live,
        staged.state.nodes,
        staged.inference,
        staging=staging,
    )


def _live_state(trained: Trained, choices: StepChoices, settled: Settled) -> Live:
    """The objects that hold the state of a job, with a reduction of the chosen type for each phase."""
    parts, peers, virtual_nodes = trained.parts, settled.peers, settled.virtual_nodes
    shards = None
    if trained.shard_copies is not None:
        shards = Shards(trained.model, trained.optimizers, trained.shard_copies, virtual_nodes, peers)
    buffers = Buffers(parts)
    settings = Settings(parts, trained.optimizers, trained.state)
    make: type[Reduction] = ExactReduction if choices.is_exact else FastReduction
    parameters = named_parameters(parts.model)
    reductions: dict[str, Reduction]
    if shards is None:
        reductions = {phase: make(parameters, buffers, virtual_nodes) for phase in trained.phases}
    else:
        reductions = {
            phase: ShardedReduction(parameters, buffers, virtual_nodes, shards, peers) for phase in trained.phases
        }
    return Live(
        parts,
        trained.optimizers,
        reductions,
        buffers,
        settings,
        trained.state,
        choices.grad_scaler,
        Samples(),
        Variables(parts, (*trained.optimizers, choices.grad_scaler, *trained.state)),
        MetricNames(),
        shards,
    )


def _step_runners(
    trained: Trained, live: Live, undeclared: Iterable[UndeclaredState], choices: StepChoices, settled: Settled
) -> dict[str, StepRunner]:
    """What makes the steps of each phase, by its name."""
    job = settled.peers.membership.job
    settings = partial(
        StepSettings,
        seed=settled.seed,
        virtual_nodes=settled.virtual_nodes,
        trainer=settled.number,
        clip_grad_norm=choices.clip_grad_norm,
        on_nan=choices.on_nan,
        mixed=job.mixed,
        on_gradients=choices.on_gradients,
        backward=choices.backward,
    )
    reductions = {name: reduction for name, reduction in live.reductions.items() if isinstance(reduction, Reduction)}
    return {
        phase.name: StepRunner(
            live.parts,
            phase.optimizers,
            reductions[phase.name],
            live.buffers,
            settings(loss_fn=phase.loss_fn, phase=phase.name),
            live.grad_scaler,
            settled.peers,
            Audit() if job.description.audit else None,
            settled.pace,
            beside,
            live.metric_names,
            live.shards,
            job.instruments.notes if job.instruments is not None else None,
            _sentinel(live, reductions[phase.name], settled),
        )
        for phase, beside in zip(trained.phases.values(), undeclared, strict=True)
    }


def _sentinel(live: Live, reduction: Reduction, settled: Settled) -> Sentinel | None:
    """What watches the steps of one phase, if anything does."""
    if not settled.watched or not isinstance(reduction, ExactReduction):
        return None
    return Sentinel(settled.watched, settled.seed, settled.virtual_nodes, live, reduction, settled.peers)
