"""The stages that this worker holds: their modules, their tensors, and an optimizer for each unit of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from virtualflow.errors import ConfigError
from virtualflow.train import optimizer_state
from virtualflow.train.stages.job_optimizer import Changes, JobOptimizer
from virtualflow.train.stages.stage_cut import Cut, Unit
from virtualflow.train.state import flattened

Contents = dict[str, Any]  # of a unit: tensors and plain values


class HeldStages:
    """What one worker holds of a model that is cut.

    A tensor of a unit exists once. Each stage that uses it has a leaf of its own on the same memory, so that what two
    stages add to its gradient is summed exactly, wherever they run.
    """

    def __init__(self, cut: Cut, job_optimizer: JobOptimizer, seed: int, device: torch.device) -> None:
        self._cut = cut
        self._job_optimizer = job_optimizer
        self._seed = seed
        self._device = device
        self.modules: dict[int, nn.Module] = {}
        self.parameters: dict[str, nn.Parameter] = {}  # by their names at home
        self.buffers: dict[str, Tensor] = {}  # as they were when the step began
        self.optimizers: dict[Unit, torch.optim.Optimizer] = {}
        self.units: tuple[Unit, ...] = ()
        self._places: dict[str, list[tuple[nn.Module, str]]] = {}  # where modules have a buffer

    def begin(self, stages: Collection[int]) -> None:
        """Hold *stages*, with their first values."""
        modules = {stage: self._cut.build(stage, self._seed, self._device) for stage in stages}
        self._take_in(modules, {})
        for name in self._tied_from_elsewhere(stages):
            home = self._cut.build(int(name.partition(".")[0]), self._seed, self._device)
            with torch.no_grad():
                self.parameters[name].copy_(home.get_parameter(name.partition(".")[2]))

    def change(self, stages: Collection[int], arrived: dict[Unit, Contents]) -> None:
        """Hold *stages* from now on; *arrived* has the units among them that were not held."""
        modules = {
            stage: self.modules[stage] if stage in self.modules else self._cut.build(stage, self._seed, self._device)
            for stage in stages
        }
        self._take_in(modules, self.optimizers)
        for unit, contents in arrived.items():
            self.put(unit, contents)

    def update(self, unit: Unit, changes: Changes) -> None:
        """Have the optimizer of *unit*, if any of its weights are trained, follow their gradients."""
        if (optimizer := self.optimizers.get(unit)) is not None:
            self._job_optimizer.hand_over(changes, optimizer, self._trained(unit))
            optimizer.step()

    def take(self, unit: Unit) -> Contents:
        """What *unit* consists of."""
        optimizer = self.optimizers.get(unit)
        return {
            "parameters": {name: self.parameters[name].detach() for name in unit.parameters},
            "buffers": {name: self.buffers[name] for name in unit.buffers},
            "optimizer": optimizer.state_dict() if optimizer is not None else None,
            "settings given": self._job_optimizer.given,
        }

    def put(self, unit: Unit, contents: Contents) -> None:
        """Set *unit* to what ``take`` gave."""
        with torch.no_grad():
            for name in unit.parameters:
                self.parameters[name].copy_(contents["parameters"][name])
            for name in unit.buffers:
                self.buffers[name].copy_(contents["buffers"][name])
        if (optimizer := self.optimizers.get(unit)) is not None:
            optimizer_state.put(optimizer, contents["optimizer"])
        self._job_optimizer.given = contents["settings given"]

    def contents(self) -> Iterator[tuple[str, Any]]:
        """Everything that is hashed, by name."""
        for unit in self.units:
            yield from self.contents_of(unit)

    def contents_of(self, unit: Unit) -> Iterator[tuple[str, Any]]:
        for name in unit.buffers:
            yield name, self.buffers[name]
        for name in unit.parameters:
            yield name, self.parameters[name]
            optimizer = self.optimizers.get(unit)
            state = optimizer.state.get(self.parameters[name], {}) if optimizer is not None else {}
            for key, value in sorted(state.items()):
                yield from flattened(value, f"optimizer {key} of {name}")

    def leaves(self, stage: int) -> Iterator[tuple[str, nn.Parameter]]:
        """The weights that *stage* uses, by their names at home."""
        for name, leaf in self.modules[stage].named_parameters():
            yield self._cut.home(f"{stage}.{name}"), leaf

    def renew_buffers(self, stage: int) -> None:
        """Give *stage* its buffers as they were when the step began.

        In new tensors: the graphs of other virtual nodes may still hold those that were there.
        """
        for name in self._buffers_of(stage):
            fresh = self.buffers[name].clone()
            for module, key in self._places[name]:
                module._buffers[key] = fresh

    def buffers_now(self, stage: int) -> Iterator[tuple[str, Tensor]]:
        """The buffers of *stage* as a forward has left them. Raises ConfigError if it has made or reshaped one."""
        count = sum(held is not None for module in self.modules[stage].modules() for held in module._buffers.values())
        known = sum(len(self._places[name]) for name in self._buffers_of(stage))
        for name in self._buffers_of(stage):
            module, key = self._places[name][0]
            now = module._buffers[key]
            if count != known or now is None or now.shape != self.buffers[name].shape:
                raise ConfigError(
                    f"the forward of stage {stage} makes a buffer, or one of another shape (near {name!r}), which is "
                    "not supported with stages. Register it, with its largest shape, when the stage is built."
                )
            yield name, now
        if count != known:
            raise ConfigError(
                f"the forward of stage {stage} makes a buffer, which is not supported with stages. Register it when "
                "the stage is built."
            )

    def _buffers_of(self, stage: int) -> list[str]:
        return [name for unit in self.units if unit.stages == (stage,) for name in unit.buffers]

    def _tied_from_elsewhere(self, stages: Collection[int]) -> list[str]:
        return [name for name in self.parameters if int(name.partition(".")[0]) not in stages]

    def _take_in(self, modules: dict[int, nn.Module], optimizers: dict[Unit, torch.optim.Optimizer]) -> None:
        before = self.parameters
        self.modules, self.units = modules, tuple(u for u in self._cut.units if set(u.stages) & modules.keys())
        names = {name for unit in self.units for name in unit.parameters}
        self.parameters = {name: parameter for name, parameter in before.items() if name in names}
        for stage in sorted(modules):
            for home, leaf in self.leaves(stage):
                if home not in self.parameters:
                    self.parameters[home] = nn.Parameter(leaf.detach(), leaf.requires_grad)
                leaf.data = self.parameters[home].data
        self._list_buffers()
        self.optimizers = {}
        for unit in self.units:
            if trained := self._trained(unit):
                self.optimizers[unit] = optimizers.get(unit) or self._job_optimizer.of_unit(trained)

    def _list_buffers(self) -> None:
        before, self.buffers, self._places = self.buffers, {}, {}
        for stage, module in self.modules.items():
            by_tensor: dict[int, list[tuple[nn.Module, str]]] = {}
            for owner in module.modules():
                for key, tensor in owner._buffers.items():
                    if tensor is not None:
                        by_tensor.setdefault(id(tensor), []).append((owner, key))
            for name, tensor in module.named_buffers():
                full = f"{stage}.{name}"
                self._places[full] = by_tensor[id(tensor)]
                if tensor.is_floating_point() and not torch.isfinite(tensor).all() and full not in before:
                    raise ConfigError(
                        f"the buffer {full!r} holds values that are not finite. With stages, buffers are averaged over "
                        "virtual nodes; running maxima and minima are not supported."
                    )
                self.buffers[full] = before[full] if full in before else tensor.detach().clone()

    def _trained(self, unit: Unit) -> dict[str, nn.Parameter]:
        return {name: self.parameters[name] for name in unit.parameters if self.parameters[name].requires_grad}
