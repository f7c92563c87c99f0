"""What a script may change as it goes besides tensors: learning rates, frozen layers, modes, its own variables.

These are small, so a job keeps them twice: as they are now, and as they were at the top of the running epoch. A worker
that joins, or a job that resumes, in the middle of an epoch runs the script's code at the top of that epoch again; it
starts from where it started then, and ends with what the job has now.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from torch import nn

from virtualflow.train import optimizer_state, script_state
from virtualflow.train.plain import address
from virtualflow.train.state import Optimizers, Parts, described, flattened

OPTIMIZER = "the optimizer"
_TITLES = {
    "requires_grad": "requires_grad of",
    "training": "the mode of",
    "state": "state",
}
MOST_ITEMS = 1000
_ABSENT = object()
_ELSEWHERE = ("training", "param_groups", "state", "defaults")  # kept with other things


class Settings:
    """The changeable things of a job that are not its tensors."""

    def __init__(self, parts: Parts, optimizers: Optimizers, state: tuple[Any, ...]) -> None:
        self._parts = parts
        self._optimizers = optimizers
        self._state = state
        self._attributes = {name: copy.deepcopy(plain_attributes(owner)) for name, owner in self._owners()}

    def take(self) -> dict[str, Any]:
        """The settings as they are now."""
        parameters = self._parts.parameters()
        return {
            "groups": [optimizer_state.group_names(optimizer, parameters) for optimizer in self._optimizers],
            "optimizers": [optimizer_state.settings(optimizer) for optimizer in self._optimizers],
            "requires_grad": {name: parameter.requires_grad for name, parameter in parameters.items()},
            "training": {name: module.training for name, module in self._parts.named_modules()},
            "attributes": self._changed_attributes(),
            "state": [
                None if isinstance(item, nn.Module) else script_state.take(item, f"state[{place}]")
                for place, item in enumerate(self._state)
            ],
        }

    def take_copy(self) -> dict[str, Any]:
        """The settings as they are now, to be kept."""
        return copy.deepcopy(self.take())

    def put(self, saved: dict[str, Any], *, on_the_way: bool = False) -> None:
        """Set what ``take`` or ``take_copy`` returned.

        On a worker that is *on_the_way* to where the job is, the script may still have to give the model its form.
        """
        parameters = self._parts.parameters()
        for optimizer, groups, settings in zip(self._optimizers, saved["groups"], saved["optimizers"], strict=True):
            if not on_the_way or {name for names in groups for name in names} <= parameters.keys():
                optimizer_state.regroup(optimizer, parameters, groups)
                optimizer_state.put_settings(optimizer, settings)
        for name, parameter in parameters.items():
            parameter.requires_grad_(saved["requires_grad"].get(name, parameter.requires_grad))
        for name, module in self._parts.named_modules():
            module.training = saved["training"].get(name, module.training)
        self._put_attributes(saved["attributes"])
        # Tensors of the model are set elsewhere: a state that holds one of them gets one of its own.
        claimed = {address(t) for t in (*parameters.values(), *(buffer[3] for buffer in self._parts.buffers()))}
        for place, (item, contents) in enumerate(zip(self._state, saved["state"], strict=True)):
            if contents is not None:
                script_state.put(item, contents, f"state[{place}]", claimed)

    def described(self) -> Iterator[tuple[str, str]]:
        """Each setting's name and value in words; what a forward may count by itself is left out.

        So are items of ``state=`` that say ``of_the_lead``: the job keeps the lead's, and others may hold another one.
        """
        taken = self.take()
        taken["state"] = [
            None if getattr(item, "of_the_lead", False) is True else contents
            for item, contents in zip(self._state, taken["state"], strict=True)
        ]
        for place, groups in enumerate(taken["optimizers"]):
            title = f"{OPTIMIZER}'s group" if len(self._optimizers) == 1 else f"{OPTIMIZER} {place}'s group"
            for name, value in flattened(groups, title):
                yield name, described(value)
        for key, title in _TITLES.items():
            for name, value in flattened(taken[key], title):
                yield name, described(value)

    def _owners(self) -> list[tuple[str, Any]]:
        names = [OPTIMIZER, *(f"{OPTIMIZER} {place}" for place in range(1, len(self._optimizers)))]
        return [*self._parts.named_modules(), *zip(names, self._optimizers, strict=False)]

    def _changed_attributes(self) -> dict[str, dict[str, Any]]:
        """Plain attributes, such as a dropout rate, that have another value than when the Trainer was made.

        Not a module's private ones that were born since: a library notes there what it has done in this process, such
        as hooks that it has put onto the model.
        """
        changed = {}
        for name, owner in self._owners():
            before = self._attributes.get(name, {})
            values = {
                key: value
                for key, value in plain_attributes(owner).items()
                if before.get(key, _ABSENT) != value
                and not (key.startswith("_") and key not in before and not name.startswith(OPTIMIZER))
            }
            if values:
                changed[name] = values
        return changed

    def _put_attributes(self, changed: dict[str, dict[str, Any]]) -> None:
        """Set all plain attributes to what they were when the Trainer was made, but for those that *changed* holds."""
        for name, owner in self._owners():
            wanted = {**self._attributes.get(name, {}), **changed.get(name, {})}
            for key, value in plain_attributes(owner).items():
                if key in wanted and wanted[key] != value:
                    setattr(owner, key, copy.deepcopy(wanted[key]))
            for key in wanted.keys() - vars(owner).keys():
                setattr(owner, key, copy.deepcopy(wanted[key]))


def plain_attributes(owner: Any) -> dict[str, Any]:
    """The attributes of *owner* that are numbers, strings and the like, and containers of them."""
    return {key: value for key, value in vars(owner).items() if key not in _ELSEWHERE and _is_plain(value, key)}


def _is_plain(value: Any, key: str = "") -> bool:
    """Whether *value* is a number, a string or the like; containers of them count, but not those of torch's own."""
    if type(value) in (bool, int, float, str, type(None)):
        return True
    if type(value) not in (list, tuple, dict) or key.startswith("_"):
        return False
    items = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    return len(items) <= MOST_ITEMS and all(map(_is_plain, items))
