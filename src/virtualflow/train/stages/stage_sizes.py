"""How much memory each stage takes on the worker that holds it, once its optimizer has state: after a step."""

from __future__ import annotations

from torch import Tensor

from virtualflow.train.stages.held_stages import HeldStages
from virtualflow.train.stages.stage_cut import Unit
from virtualflow.train.state import flattened

BYTES_OF_A_SUM = 8  # float64


def stage_sizes(held: HeldStages) -> tuple[tuple[int, int], ...]:
    """Each stage that is held, with its bytes. A weight that stages share counts for each of them."""
    sizes = dict.fromkeys(sorted(held.modules), 0)
    for unit in held.units:
        size = _unit_size(held, unit)
        for stage in sizes.keys() & set(unit.stages):
            sizes[stage] += size
    return tuple(sizes.items())


def _unit_size(held: HeldStages, unit: Unit) -> int:
    """Values, sums and optimizer state; gradients of a step are given up with it."""
    values = [*(held.parameters[name] for name in unit.parameters), *(held.buffers[name] for name in unit.buffers)]
    size = sum(value.nbytes + BYTES_OF_A_SUM * value.numel() for value in values)
    if (optimizer := held.optimizers.get(unit)) is not None:
        state = (value for entry in optimizer.state.values() for _, value in flattened(entry, ""))
        size += sum(value.nbytes for value in state if isinstance(value, Tensor))
    return size
