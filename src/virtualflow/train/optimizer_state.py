"""An optimizer's state, put back to the bit: in the dtype in which it was, whatever the parameter's is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from virtualflow.errors import CheckpointError, ConfigError

Optimizer = torch.optim.Optimizer


def put(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Set *optimizer* to what its ``state_dict`` returned."""
    try:
        optimizer.load_state_dict(saved)
    except ValueError as error:
        raise CheckpointError(f"the checkpoint's optimizer is not this one: {error}") from error
    if not {"state", "param_groups"} <= saved.keys():
        return  # an optimizer with a state_dict of its own knows how to load it
    # torch casts a parameter's state to the parameter's own dtype, which loses bits of float32 sums beside bfloat16
    # weights.
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        if number in saved["state"]:
            optimizer.state[parameter] = _as_saved(optimizer.state[parameter], saved["state"][number])


def follow_parameters(optimizer: Optimizer) -> None:
    """Put what an optimizer has made before its parameters were moved where they are now, as Adagrad's sums are."""
    for parameter, held in optimizer.state.items():
        for key, value in held.items():
            if isinstance(value, Tensor) and value.dim():  # a number, such as a count of steps, stays on the host
                held[key] = value.to(parameter.device)


def _as_saved(held: Any, saved: Any) -> Any:
    """*held*, with those tensors of *saved* whose dtype was changed on the way."""
    if isinstance(held, Tensor) and isinstance(saved, Tensor):
        return held if held.dtype == saved.dtype else saved.to(held.device, copy=True)
    if isinstance(held, dict) and isinstance(saved, dict):
        return type(held)({key: _as_saved(value, saved.get(key)) for key, value in held.items()})
    if type(held) in (list, tuple) and isinstance(saved, list | tuple) and len(held) == len(saved):
        return type(held)(_as_saved(one, other) for one, other in zip(held, saved, strict=True))
    return held


def group_names(optimizer: Optimizer, parameters: dict[str, nn.Parameter]) -> list[list[str]]:
    """The names in each parameter group."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    return [[names.get(id(parameter), "") for parameter in group["params"]] for group in optimizer.param_groups]


def regroup(optimizer: Optimizer, parameters: dict[str, nn.Parameter], groups: list[list[str]]) -> None:
    """A script may change parameter groups as it goes, and this worker has not come by there."""
    if groups == group_names(optimizer, parameters):
        return
    if odd := sorted({name for names in groups for name in names} - parameters.keys()):
        raise CheckpointError(f"the checkpoint's optimizer holds the parameter {odd[0]!r}, which is not in this model")
    optimizer.param_groups[:] = [
        {
            **(optimizer.param_groups[number] if number < len(optimizer.param_groups) else {}),
            "params": [parameters[n] for n in names],
        }
        for number, names in enumerate(groups)
    ]


def settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The hyperparameters of each group."""
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def put_settings(optimizer: Optimizer, saved: list[dict[str, Any]]) -> None:
    """Set the hyperparameters of each group, and no others."""
    for group, values in zip(optimizer.param_groups, saved, strict=True):
        for gone in group.keys() - values.keys() - {"params"}:
            del group[gone]
        for key, value in values.items():
            group[key] = value.clone() if isinstance(value, Tensor) else value


def check(optimizer: Optimizer) -> None:
    """Refuse an optimizer that keeps tensors where its ``state_dict`` does not see them."""
    if type(optimizer).state_dict is not Optimizer.state_dict:
        return  # it says itself what its state is
    for name, value in vars(optimizer).items():
        if name not in ("param_groups", "state", "defaults") and (what := _hidden_in(value, optimizer)):
            raise ConfigError(
                f"the optimizer {type(optimizer).__name__} keeps {what} in its attribute {name!r}, which its "
                "state_dict does not "
                "hold: workers that join and jobs that resume would continue without it. Keep it in "
                "optimizer.state[parameter], "
                "or give the optimizer a state_dict and a load_state_dict that hold it."
            )


def _hidden_in(value: Any, optimizer: Optimizer) -> str | None:
    if isinstance(value, Optimizer) and value is not optimizer and value.state is not optimizer.state:
        return f"another optimizer ({type(value).__name__})"
    known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return "tensors" if any(id(tensor) not in known for tensor in _tensors_in(value)) else None


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors_in(item)
