"""A model that is cut into stages: what each consists of is known to every worker, and built only where it is held."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from virtualflow.core.cells import Cells
from virtualflow.core.mapping import DeviceId
from virtualflow.core.seeds import derive
from virtualflow.errors import ConfigError
from virtualflow.train import checks
from virtualflow.train.inference import default_predict
from virtualflow.train.seeding import generators_kept, reseed

Stages = Sequence[Callable[[], nn.Module] | nn.Module] | nn.Sequential


@dataclass(frozen=True, slots=True)
class Unit:
    """The tensors that the same stages use: what is summed, updated and moved as a whole.

    Usually all of one stage; a weight that stages share is in a unit of its own. Tensors have the names that they have
    at home: the stage's number, and their name there.
    """

    stages: tuple[int, ...]
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]

    def runners(self, cells: Cells) -> list[DeviceId]:
        """The devices that run one of its stages."""
        return list(dict.fromkeys(device for stage in self.stages for device in cells.runners(stage)))

    def holders(self, cells: Cells) -> list[DeviceId]:
        """The devices that hold it: those that run one of its stages, then the others."""
        held = (device for stage in self.stages for device in cells.holders(stage))
        return list(dict.fromkeys((*self.runners(cells), *held)))


class Cut:
    """The stages of a model, as the script gives them: functions that build them, or the modules themselves.

    *tied* names weights that are another stage's: ``{"3.out.weight": "0.wte.weight"}``.
    """

    def __init__(self, stages: Stages, tied: Mapping[str, str]) -> None:
        self._stages = list(stages)
        if not self._stages:
            raise ConfigError("stages=[] holds no stage. Give a function for each that builds it.")
        self.homes = dict(tied)
        self.shapes: dict[str, Tensor] = {}  # of all tensors, by their names at home, on no device
        self.stand_ins: dict[str, nn.Parameter] = {}  # of the weights that are trained, on no device
        self.takes_batch: list[bool] = []
        used_by: dict[str, list[int]] = {}
        parameters: set[str] = set()
        for stage in range(self.count):
            module = self._on_no_device(stage)
            if checks.is_compiled(module, None):
                raise ConfigError(
                    f"stage {stage} is compiled, and torch.compile is not supported together with stages=."
                )
            self.takes_batch.append(_takes_batch(module, stage))
            for name, tensor in self._own_tensors(module, stage):
                if isinstance(tensor, nn.Parameter):
                    parameters.add(self.home(name))
                if name not in self.homes:
                    self.shapes[name] = tensor.detach().to("meta")
                    if tensor.requires_grad:
                        self.stand_ins[name] = nn.Parameter(self.shapes[name])
                used_by.setdefault(self.home(name), []).append(stage)
                self._note_shape(name, tensor)
        self._check_ties(used_by, parameters)
        self.units = _units(used_by, parameters)

    @property
    def count(self) -> int:
        return len(self._stages)

    @property
    def is_built(self) -> bool:
        """Whether the script has given modules, which exist on every worker."""
        return any(isinstance(stage, nn.Module) for stage in self._stages)

    @property
    def modules(self) -> nn.ModuleList:
        """Those that the script has given."""
        return nn.ModuleList(stage for stage in self._stages if isinstance(stage, nn.Module))

    def home(self, name: str) -> str:
        """The name under which the tensor *name* of a stage is known to the job."""
        return self.homes.get(name, name)

    def build(self, stage: int, seed: int, device: torch.device) -> nn.Module:
        """*stage* with its first values, which depend on *seed* and the stage alone."""
        given = self._stages[stage]
        if isinstance(given, nn.Module):
            return given.to(device)
        with generators_kept():
            reseed(derive(seed, "stage", stage))
            module = given()
        if not isinstance(module, nn.Module):
            raise ConfigError(f"stage {stage} built a value of type {type(module).__name__}, expected a module")
        checks.check_model(module)
        return module.to(device)

    def call(self, stage: int, module: nn.Module, x: Any, batch: Any) -> Any:
        """The output of *stage* for *x*, which is that of the stage before."""
        if self.takes_batch[stage]:
            return module(x, batch)
        return default_predict(module, batch) if stage == 0 else module(x)

    def loads(self, stage: int) -> bool:
        """Whether *stage* needs the shard of the batch: the loss, at the last one, does."""
        return stage in (0, self.count - 1) or self.takes_batch[stage]

    def _on_no_device(self, stage: int) -> nn.Module:
        given = self._stages[stage]
        if isinstance(given, nn.Module):
            return given
        if not callable(given):
            raise ConfigError(f"stages[{stage}] is a {type(given).__name__}, expected a function that builds a module")
        with generators_kept(), torch.device("meta"):
            return given()

    def _own_tensors(self, module: nn.Module, stage: int) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if tensor.is_complex():
                raise ConfigError(f"{name!r} of stage {stage} is complex, which is not supported with stages.")
            yield f"{stage}.{name}", tensor

    def _note_shape(self, name: str, tensor: Tensor) -> None:
        home = self.home(name)
        if home != name and home in self.shapes and self.shapes[home].shape != tensor.shape:
            raise ConfigError(
                f"tied={{{name!r}: {home!r}}}: one is of shape {tuple(tensor.shape)}, and the other of "
                f"{tuple(self.shapes[home].shape)}."
            )

    def _check_ties(self, used_by: dict[str, list[int]], parameters: set[str]) -> None:
        for name, home in self.homes.items():
            if name.partition(".")[0] == home.partition(".")[0]:
                raise ConfigError(f"tied={{{name!r}: {home!r}}} names one stage twice: tie them inside of the stage.")
            if home not in self.shapes or home not in parameters:
                raise ConfigError(f"tied={{{name!r}: {home!r}}}: no stage has a weight {home!r} of its own.")
            if int(name.partition(".")[0]) not in used_by[home]:
                raise ConfigError(f"tied={{{name!r}: {home!r}}}: there is no weight {name!r}.")
        owners: dict[int, str] = {}
        for stage, given in enumerate(self._stages):
            for name, parameter in given.named_parameters() if isinstance(given, nn.Module) else ():
                place = f"{stage}.{name}"
                if owners.setdefault(id(parameter), place) != place:
                    raise ConfigError(
                        f"{owners[id(parameter)]!r} and {place!r} are one weight in two stages, which may run on two "
                        f"devices. Give each its own, and say tied={{{place!r}: {owners[id(parameter)]!r}}}."
                    )


def _units(used_by: dict[str, list[int]], parameters: set[str]) -> tuple[Unit, ...]:
    names: dict[tuple[int, ...], list[str]] = {}
    for name, stages in used_by.items():
        names.setdefault(tuple(sorted(set(stages))), []).append(name)
    return tuple(
        Unit(
            stages,
            tuple(name for name in listed if name in parameters),
            tuple(name for name in listed if name not in parameters),
        )
        for stages, listed in sorted(names.items())
    )


def _takes_batch(module: nn.Module, stage: int) -> bool:
    """Whether a stage is called with ``(x, batch)``, not with ``x`` alone."""
    if isinstance(module, nn.Sequential):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    wanted = [
        parameter
        for parameter in inspect.signature(module.forward).parameters.values()
        if parameter.kind in kinds and parameter.default is inspect.Parameter.empty
    ]
    if len(wanted) > 2:
        raise ConfigError(
            f"the forward of stage {stage} takes {len(wanted)} arguments, expected x, the output of the stage before, "
            "or (x, batch)."
        )
    return len(wanted) == 2
