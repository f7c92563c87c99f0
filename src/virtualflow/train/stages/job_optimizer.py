"""The optimizer of a job whose model is cut, as its script sees it, and those that make the updates.

No device holds the whole model, so each unit has an optimizer of its own where it is held. The script has one for the
whole job: it holds the groups of all weights and their settings, and no memory. What is changed there, by a schedule or
by hand, counts from the next step on.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from virtualflow.errors import ConfigError
from virtualflow.train import checks, optimizer_state, other_optimizers, script_state

GroupSettings = list[dict[str, Any]]  # of each group
Changes = Mapping[int, Mapping[str, Any]]  # settings, by the number of their group


class NamedParameters(list[nn.Parameter]):
    """The weights that the script's function makes an optimizer for: a list, with their names in the job."""

    def __init__(self, by_name: Mapping[str, nn.Parameter]) -> None:
        super().__init__(by_name.values())
        self._by_name = dict(by_name)

    def named(self) -> list[tuple[str, nn.Parameter]]:
        """Each weight with its name, such as ``"3.out.weight"``: the stage's number, and the name there."""
        return list(self._by_name.items())


MakeOptimizer = Callable[[NamedParameters], torch.optim.Optimizer]


class JobOptimizer:
    """Makes the optimizers of units, and hands them what the script changes in that of the job.

    *stand_ins* are the weights of the whole model on no device: those that are trained.
    """

    def __init__(self, make: MakeOptimizer, stand_ins: Mapping[str, nn.Parameter]) -> None:
        self._make = make
        self.whole = self._made(stand_ins)
        self.whole.state.clear()  # some optimizers make it at once
        names = {id(stand_in): name for name, stand_in in stand_ins.items()}
        self._groups = {
            names[id(parameter)]: number
            for number, group in enumerate(self.whole.param_groups)
            for parameter in group["params"]
        }
        self._first = self._settings()
        self.given = self._first  # what the units' optimizers were given last

    def of_unit(self, parameters: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer of the weights *parameters*, which are in the groups that the job's has for them."""
        optimizer = self._made(parameters)
        for number, settings in enumerate(optimizer_state.settings(optimizer)):
            groups = self._job_groups(optimizer, number, parameters)
            if len(groups) > 1 or any(_differences(settings, self._first[group]) for group in groups):
                raise ConfigError(
                    "optimizer= puts weights into other groups when it gets them stage by stage. In which group a "
                    "weight is must depend on the weight alone: on its shape, or on its name in params.named()."
                )
        other_optimizers.declare((optimizer,))
        return optimizer

    def changes(self) -> Changes:
        """What the script has changed since the last step."""
        now = self._settings()
        if len(now) != len(self.given):
            raise ConfigError("with stages, groups can't be added to the optimizer: make all of them in optimizer=.")
        changed = {number: _differences(group, self.given[number]) for number, group in enumerate(now)}
        return {number: settings for number, settings in changed.items() if settings}

    def hand_over(
        self,
        changes: Changes,
        optimizer: torch.optim.Optimizer,
        parameters: Mapping[str, nn.Parameter],
    ) -> None:
        """Give a unit's *optimizer* of *parameters* the *changes* of its groups."""
        for number, group in enumerate(optimizer.param_groups) if changes else ():
            for place in self._job_groups(optimizer, number, parameters):
                for key, value in changes.get(place, {}).items():
                    group[key] = value.clone() if isinstance(value, Tensor) else value

    def stepped(self) -> None:
        """All units were updated, and so was the job's optimizer: schedules look for that."""
        self.whole.step()  # without gradients: it changes nothing
        self.given = self._settings()

    def _job_groups(
        self, optimizer: torch.optim.Optimizer, number: int, parameters: Mapping[str, nn.Parameter]
    ) -> Collection[int]:
        names = {id(parameter): name for name, parameter in parameters.items()}
        return {self._groups[names[id(parameter)]] for parameter in optimizer.param_groups[number]["params"]}

    def _settings(self) -> GroupSettings:
        return copy.deepcopy(optimizer_state.settings(self.whole))

    def _made(self, parameters: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = self._make(NamedParameters(parameters))
        if isinstance(optimizer, list | tuple | dict):
            raise ConfigError(
                f"optimizer= gave a {type(optimizer).__name__}: with stages there is one optimizer, of all weights. "
                "Those with settings of their own are groups of it, by shape or by name in params.named(): "
                "AdamW([{...}, {...}])."
            )
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ConfigError(
                f"optimizer= gave a {type(optimizer).__name__}, expected an optimizer. With stages it is a function: "
                "optimizer=lambda params: torch.optim.AdamW(params, lr=3e-4)."
            )
        if sum(len(group["params"]) for group in optimizer.param_groups) != len(parameters):
            raise ConfigError(
                "with stages, optimizer= makes an optimizer of all the weights that it gets, each once. Those that "
                "should stay as they are: requires_grad_(False) where the stage is built."
            )
        checks.check_state((), (optimizer,))
        return optimizer


def items_of_state(state: Sequence[Any], optimizer: torch.optim.Optimizer) -> tuple[Any, ...]:
    """The items of ``state=``, of which functions are called with the job's *optimizer*, as schedules need it."""
    items = tuple(item(optimizer) if _is_function(item) else item for item in state)
    for item in items:
        if isinstance(item, nn.Module | torch.optim.Optimizer):
            raise ConfigError(
                f"state= holds a {type(item).__name__}: modules and optimizers beside the stages are not supported. "
                "Make it a stage, or a part of one."
            )
    return items


def _is_function(item: Any) -> bool:
    return callable(item) and not script_state.is_known(item)


def _differences(now: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in now.items() if key not in before or not _equal(value, before[key])}


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)
