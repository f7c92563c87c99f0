"""What a Trainer updates, with which optimizers, by which loss: once, or in several phases that take turns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from virtualflow.errors import ConfigError
from virtualflow.train.state import Optimizers

LossFn = Callable[[nn.Module, Any], Any]


@dataclass(frozen=True, slots=True)
class Phase:
    """One kind of step: a loss, and the optimizers that follow its gradients."""

    name: str  # "" for a Trainer that has but one
    optimizers: Optimizers
    loss_fn: LossFn


def as_module(models: Any) -> nn.Module:
    """One module for a model, or for a dict or a list of models; ``loss_fn`` gets it, and finds them by name."""
    if isinstance(models, nn.Module):
        return models
    if isinstance(models, Mapping) and models and all(isinstance(item, nn.Module) for item in models.values()):
        return nn.ModuleDict(models)
    if isinstance(models, list | tuple) and models and all(isinstance(item, nn.Module) for item in models):
        return nn.ModuleList(models)
    raise ConfigError(
        f"the Trainer got a {type(models).__name__} as its model, expected an nn.Module, or a dict or list of them"
    )


def phases_of(optimizer: Any, loss_fn: LossFn | None) -> dict[str, Phase]:
    """The phases that a Trainer's second and third argument describe, by name."""
    if not isinstance(optimizer, Mapping):
        if loss_fn is None:
            raise ConfigError("the Trainer needs a loss_fn: vf.Trainer(model, optimizer, loss_fn, ...)")
        return {"": Phase("", _optimizers(optimizer, "the Trainer"), loss_fn)}
    if loss_fn is not None:
        raise ConfigError(
            'the Trainer got phases and a loss_fn. Each phase has its own: {"d": (optimizer, loss_fn), ...}; leave the '
            "third argument out."
        )
    if not optimizer:
        raise ConfigError('the Trainer got no phase at all, expected {"name": (optimizer, loss_fn), ...}')
    return {name: _phase(name, given) for name, given in optimizer.items()}


def _phase(name: Any, given: Any) -> Phase:
    if not isinstance(name, str) or not name:
        raise ConfigError(f"the Trainer got a phase with the name {name!r}, expected a string")
    if not isinstance(given, tuple) or len(given) != 2 or not callable(given[1]):
        raise ConfigError(f"the phase {name!r} is a {type(given).__name__}, expected (optimizer, loss_fn)")
    return Phase(name, _optimizers(given[0], f"the phase {name!r}"), given[1])


def _optimizers(given: Any, where: str) -> Optimizers:
    optimizers = tuple(given) if isinstance(given, Sequence) else (given,)
    if not optimizers or not all(isinstance(optimizer, torch.optim.Optimizer) for optimizer in optimizers):
        odd = next((optimizer for optimizer in optimizers if not isinstance(optimizer, torch.optim.Optimizer)), given)
        raise ConfigError(
            f"{where} got a {type(odd).__name__} as its optimizer, expected one of torch.optim, or a list of them"
        )
    return optimizers


def all_optimizers(phases: Mapping[str, Phase]) -> Optimizers:
    """The optimizers of all phases, each once. Raises ConfigError where two would update one parameter in one step."""
    optimizers = dict.fromkeys(optimizer for phase in phases.values() for optimizer in phase.optimizers)
    for phase in phases.values():
        updated = [p for optimizer in phase.optimizers for group in optimizer.param_groups for p in group["params"]]
        if len(updated) != len(set(updated)):
            where = f"phase {phase.name!r}" if phase.name else "the Trainer"
            raise ConfigError(f"two optimizers of {where} hold the same parameter. Give each parameter to one of them.")
    return tuple(optimizers)


def updated_by(optimizers: Optimizers) -> set[nn.Parameter]:
    """The parameters that *optimizers* update."""
    return {p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}


@contextmanager
def others_frozen(model: nn.Module, mine: set[nn.Parameter]) -> Iterator[None]:
    """Of several phases, each makes gradients for its own parameters alone, *mine*."""
    others = [p for p in model.parameters() if p.requires_grad and p not in mine]
    for parameter in others:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in others:
            parameter.requires_grad_(True)


def check_phase(phase: str, known: Collection[str]) -> None:
    """Raise ConfigError if a step is to be of a *phase* that its Trainer does not have."""
    if phase in known:
        return
    names = ", ".join(map(repr, known))
    raise ConfigError(
        f"trainer.step got the phase {phase!r}, expected one of {names}: trainer.step(batch, {names[:20]})"
        if "" not in known
        else f"trainer.step got the phase {phase!r}, but this Trainer has none: trainer.step(batch)"
    )
