"""The optimizers' state in parts of a checkpoint: each worker writes some of the blocks that it holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from virtualflow.core.blocks import Block
from virtualflow.train import checkpoint
from virtualflow.train.checkpoint import TensorPlaces
from virtualflow.train.part_files import PartWriters
from virtualflow.train.sharded.block_moves import Held
from virtualflow.train.sharded.cut_state import OptimizerState, assembled, cut_state, empty_on_host


def part_of(held: Held, mine: Sequence[Block], rank: int, workers: int) -> PartWriters:
    """The parts of all workers, of which this one writes what it holds of the blocks *mine*."""

    def contents() -> dict[str, Any]:
        return {"blocks": [(block.tensor, block.start, block.stop, held[block]) for block in mine]}

    return [contents if number == rank else None for number in range(workers)]


class SavedBlocks:
    """What lies in the files at *paths*; it stays there until it is looked at."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._found: dict[str, dict[Block, tuple[OptimizerState, TensorPlaces]]] = {}
        for path in paths:
            contents, places = checkpoint.read_mapped(Path(path))
            for name, start, stop, state in contents["blocks"]:
                self._found.setdefault(name, {})[Block(name, start, stop)] = state, places

    def block(self, block: Block, parameter: nn.Parameter, *, counts_on_host: bool) -> OptimizerState:
        """The state of *block* of *parameter*, where that is; counts of steps may be on the host all the same."""
        found = self._found.get(block.tensor, {})
        if block in found:
            state, places = found[block]
        else:  # it was written by a job that cut this tensor otherwise
            state, places = cut_state(self._whole(block.tensor, parameter), parameter, block), TensorPlaces()
        return {key: tree_map(_onto(parameter.device, places, counts_on_host), value) for key, value in state.items()}

    def state_dict(
        self, empty: dict[str, Any], groups: Sequence[Sequence[str]], parameters: Mapping[str, nn.Parameter]
    ) -> dict[str, Any]:
        """An optimizer's ``state_dict``, whole; *empty* is without state, and *groups* are its parameters' names."""
        numbers = (number for group in empty["param_groups"] for number in group["params"])
        names = (name for group in groups for name in group)
        states = {n: self._whole(name, parameters[name]) for n, name in zip(numbers, names, strict=True)}
        return {**empty, "state": {number: state for number, state in states.items() if state}}

    def _whole(self, name: str, parameter: Tensor) -> OptimizerState:
        found = self._found.get(name, {})
        pieces = [(block, found[block][0]) for block in sorted(found)]
        return assembled(parameter, pieces, empty_on_host) if pieces else {}


def _onto(device: torch.device, places: TensorPlaces, counts_on_host: bool) -> Callable[[Any], Any]:
    """Copies a value; a tensor to *device*, unless it is a single number that lay on the host and may do so here."""

    def copied(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        stays = value.dim() == 0 and counts_on_host and not places.lay_elsewhere(value)
        return value.clone() if stays else value.to(device, copy=True)

    return copied
