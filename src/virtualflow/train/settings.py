"""What a script may change as it goes besides tensors: learning rates, frozen layers, modes, its own variables.

These are small, so a job keeps them twice: as they are now, and as they were at the top of the running epoch. A worker
that joins, or a job that resumes, in the middle of an epoch runs the script's code at the top of that epoch again; it
starts from where it started then, and ends with what the job has now.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from virtualflow.train import optimizer_state, script_state
from virtualflow.train.state import Parts, described, flattened, tensors_in

LARGE_BYTES = 1 << 20  # a state with more tensors than this is no setting; it is kept once
OPTIMIZER = "the optimizer"
_TITLES = {
    "optimizer": "the optimizer's group",
    "requires_grad": "requires_grad of",
    "training": "the mode of",
    "state": "state",
}
_ABSENT = object()
_PLAIN = (bool, int, float, str, type(None))


class Settings:
    """The changeable things of a job that are not its tensors."""

    def __init__(self, parts: Parts, optimizer: torch.optim.Optimizer, state: tuple[Any, ...]) -> None:
        self._parts = parts
        self._optimizer = optimizer
        self._state = state
        self._attributes = self._plain_attributes()

    def take(self) -> dict[str, Any]:
        """The settings as they are now."""
        parameters = self._parts.parameters()
        return {
            "groups": optimizer_state.group_names(self._optimizer, parameters),
            "optimizer": optimizer_state.settings(self._optimizer),
            "requires_grad": {name: parameter.requires_grad for name, parameter in parameters.items()},
            "training": {name: module.training for name, module in self._parts.named_modules()},
            "attributes": self._changed_attributes(),
            "state": [None if isinstance(item, nn.Module) else script_state.take(item) for item in self._state],
        }

    def take_copy(self) -> dict[str, Any]:
        """The settings as they are now, to be kept; without states that are large."""
        taken = self.take()
        taken["state"] = [contents if _is_small(contents) else None for contents in taken["state"]]
        return copy.deepcopy(taken)

    def put(self, saved: dict[str, Any], *, on_the_way: bool = False) -> None:
        """Set what ``take`` or ``take_copy`` returned.

        On a worker that is *on_the_way* to where the job is, the script may still have to give the model its form.
        """
        parameters = self._parts.parameters()
        if not on_the_way or {name for names in saved["groups"] for name in names} <= parameters.keys():
            optimizer_state.regroup(self._optimizer, parameters, saved["groups"])
            optimizer_state.put_settings(self._optimizer, saved["optimizer"])
        for name, parameter in parameters.items():
            parameter.requires_grad_(saved["requires_grad"].get(name, parameter.requires_grad))
        for name, module in self._parts.named_modules():
            module.training = saved["training"].get(name, module.training)
            for key, value in saved["attributes"].get(name, {}).items():
                setattr(module, key, value)
        for key, value in saved["attributes"].get(OPTIMIZER, {}).items():
            setattr(self._optimizer, key, value)
        for place, (item, contents) in enumerate(zip(self._state, saved["state"], strict=True)):
            if contents is not None:
                script_state.put(item, contents, f"state[{place}]")

    def described(self) -> Iterator[tuple[str, str]]:
        """Each setting's name and value in words; what a forward may count by itself is left out."""
        taken = self.take()
        for key, title in _TITLES.items():
            for name, value in flattened(taken[key], title):
                yield name, described(value)

    def _changed_attributes(self) -> dict[str, dict[str, Any]]:
        """Plain attributes, such as a dropout rate, that have another value than when the Trainer was made."""
        changed = {
            owner: {
                key: value
                for key, value in values.items()
                if self._attributes.get(owner, {}).get(key, _ABSENT) != value
            }
            for owner, values in self._plain_attributes().items()
        }
        return {owner: values for owner, values in changed.items() if values}

    def _plain_attributes(self) -> dict[str, dict[str, Any]]:
        owners: list[tuple[str, Any]] = [*self._parts.named_modules(), (OPTIMIZER, self._optimizer)]
        return {
            name: {key: value for key, value in vars(owner).items() if key != "training" and isinstance(value, _PLAIN)}
            for name, owner in owners
        }


def _is_small(contents: Any) -> bool:
    tensors: list[Tensor] = list(tensors_in(contents))
    return sum(tensor.nbytes for tensor in tensors) <= LARGE_BYTES
