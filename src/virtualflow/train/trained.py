"""What a Trainer trains, as its script gives it: a model, whole or cut into stages, and what else is its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from virtualflow.core.membership import JobContext
from virtualflow.train import checks
from virtualflow.train.phases import LossFn, Phase, all_optimizers, as_module, phases_of
from virtualflow.train.stages.job_optimizer import items_of_state
from virtualflow.train.stages.stage_cut import Stages
from virtualflow.train.stages.staging import Staging, refuse_without_stages
from virtualflow.train.state import Optimizers, Parts
from virtualflow.train.step_settings import StepChoices


@dataclass(frozen=True, slots=True)
class Spread:
    """How a model and its state are to be spread over devices, as the script has chosen."""

    stages: Stages | None = None  # None: every device holds the whole model
    tied: Mapping[str, str] | None = None
    pipeline: str = "1f1b"
    recompute: bool = False
    sharding: str = "none"
    copies: int = 2  # of each stage, or of each block of the optimizer's state


@dataclass(frozen=True, slots=True)
class Trained:
    """A model, its optimizers, and the rest of its state, all of which have been checked."""

    parts: Parts  # the modules; of a model that is cut, there is none of its own
    phases: Mapping[str, Phase]  # none of a model that is cut
    optimizers: Optimizers
    state: tuple[Any, ...]
    shard_copies: int | None = None  # of each block of the optimizers' state, if that is spread over devices
    staging: Staging | None = None  # of a model that is cut

    def __post_init__(self) -> None:
        checks.check_state(self.state, self.optimizers)

    @classmethod
    def of(
        cls, model: Any, optimizer: Any, loss_fn: Any, state: Any, spread: Spread, choices: StepChoices, job: JobContext
    ) -> Trained:
        """Check these arguments of a Trainer. Raises ConfigError."""
        items = tuple(state) if isinstance(state, list | tuple) else (state,)
        if spread.stages is not None:
            staging = _staging(model, spread.stages, optimizer, loss_fn, spread, choices, job)
            whole = staging.optimizer.whole
            items = items_of_state(items, whole)
            return cls(Parts(nn.Module(), items), {}, (whole,), items, staging=staging)
        given_alone = {
            "tied=": bool(spread.tied),
            "recompute=": spread.recompute,
            "pipeline=": spread.pipeline != "1f1b",
        }
        refuse_without_stages(job, given_alone)
        checks.check_sharding(spread.sharding, spread.copies, choices.reduction, choices.on_gradients, job)
        module, phases = as_module(model), phases_of(optimizer, loss_fn)
        optimizers = all_optimizers(phases)
        checks.check_model(module)
        checks.check_optimizers(optimizers, module)
        shard_copies = spread.copies if spread.sharding == "state" else None
        return cls(Parts(module, items), phases, optimizers, items, shard_copies)

    @property
    def model(self) -> nn.Module:
        return self.parts.model

    @property
    def loss_fns(self) -> list[LossFn]:
        return [phase.loss_fn for phase in self.phases.values()]

    @property
    def facts(self) -> dict[str, Any]:
        """What makes a job that trains this one, besides its data."""
        return self.staging.facts if self.staging is not None else {}

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        if self.staging is not None:
            return self.staging.parameters
        return sum(parameter.numel() for parameter in self.model.parameters())


def _staging(
    model: Any, stages: Stages, optimizer: Any, loss_fn: Any, spread: Spread, choices: StepChoices, job: JobContext
) -> Staging:
    refused = {
        "a model": model is not None,
        "reduction='fast'": choices.reduction != "exact",
        "on_gradients=": choices.on_gradients is not None,
        "backward=": choices.backward is not torch.Tensor.backward,
        "sharding=": spread.sharding != "none",
    }
    tied = spread.tied or getattr(stages, "tied", {})
    given = (stages, tied, optimizer, loss_fn, spread.copies, spread.pipeline, spread.recompute)
    return Staging.of(*given, refused, job)
