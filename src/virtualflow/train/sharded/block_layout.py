"""How a model's parameters are cut into blocks: large ones into pieces, if their optimizer does not mind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from virtualflow.core import blocks
from virtualflow.core.blocks import Block
from virtualflow.errors import ConfigError
from virtualflow.train.accumulate import is_dense
from virtualflow.train.sharded.optimizer_probe import check_hooks, choices, may_cut
from virtualflow.train.state import Optimizers, named_parameters


@dataclass(frozen=True, slots=True)
class TensorCut:
    """A parameter and its blocks."""

    parameter: nn.Parameter
    blocks: tuple[Block, ...]
    stride: tuple[int, ...]

    def part(self, block: Block) -> Tensor:
        """The memory of the parameter that is *block*'s, as a vector; a whole parameter is itself."""
        if len(self.blocks) == 1:
            return self.parameter
        memory = self.parameter.detach()
        return memory.as_strided((block.elements,), (1,), memory.storage_offset() + block.start)


class BlockLayout:
    """The blocks of a model, in the order of its parameters."""

    def __init__(self, model: nn.Module, optimizers: Optimizers) -> None:
        self._model = model
        self._optimizers = optimizers
        self._asked: dict[Any, bool] = {}
        self.cuts: dict[str, TensorCut] = {}
        self.blocks: list[Block] = []

    def follow(self) -> list[str]:
        """Look at the model again; return the names of parameters that were not there before, or were others."""
        parameters, cut_up = named_parameters(self._model), self._cut_up()
        cuts = {}
        for name, parameter in parameters.items():
            known = self.cuts.get(name)
            stays = known is not None and known.parameter is parameter and len(known.blocks) == 1
            whole = stays or parameter not in cut_up or not is_dense(parameter)
            pieces = blocks.cut(name, parameter.numel(), whole=whole)
            if known is not None and known.parameter is parameter and len(known.blocks) == len(pieces):
                pieces = list(known.blocks)  # the same objects: there may be many of them
            cuts[name] = TensorCut(parameter, tuple(pieces), parameter.stride())
            if known is not None and known.parameter is parameter:
                self._check_form(name, known, cuts[name])
        new = [
            name
            for name, cut in cuts.items()
            if name not in self.cuts or self.cuts[name].parameter is not cut.parameter
        ]
        if new or cuts.keys() != self.cuts.keys():
            self.blocks = [block for cut in cuts.values() for block in cut.blocks]
        self.cuts = cuts
        return new

    def part(self, block: Block) -> Tensor:
        """The memory of *block*."""
        return self.cuts[block.tensor].part(block)

    def _cut_up(self) -> set[nn.Parameter]:
        """The parameters that may be cut: those of which their optimizer has shown that it does not mind."""
        self._check_one_state_each()
        found: set[nn.Parameter] = set()
        for place, optimizer in enumerate(self._optimizers):
            check_hooks(optimizer)
            for number, group in enumerate(optimizer.param_groups):
                chosen = choices(group)
                for parameter in group["params"]:
                    key = place, number, parameter.dtype, chosen
                    if key not in self._asked:
                        self._asked[key] = may_cut(optimizer, number, parameter)
                    if self._asked[key]:
                        found.add(parameter)
        return found

    def _check_one_state_each(self) -> None:
        seen: set[nn.Parameter] = set()
        for optimizer in self._optimizers:
            held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
            if not seen.isdisjoint(held):
                raise ConfigError(
                    'sharding="state" keeps one state of each parameter, and two optimizers hold the same parameter. '
                    'Give each to one of them, or use sharding="none".'
                )
            seen |= held

    def _check_form(self, name: str, before: TensorCut, now: TensorCut) -> None:
        if before.blocks != now.blocks or (len(now.blocks) > 1 and before.stride != now.stride):
            raise ConfigError(
                f"the parameter {name!r} has changed its size, its memory format or its optimizer while its state is "
                'spread over devices. Do so before the Trainer is made, or use sharding="none".'
            )
