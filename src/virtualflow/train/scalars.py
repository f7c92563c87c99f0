"""The few numbers of each virtual node that every worker must see, reduced in one small all-reduce.

Each number travels in a slot of its own, written by the worker that ran the virtual node and lowest elsewhere; the
maximum over workers is then what was written, bit by bit, whatever the order.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import torch
from torch import Tensor

from virtualflow.core.membership import Group

_ABSENT = -(2**63)
_FIELDS = 7
INFINITE_BITS = 0x7FF0_0000_0000_0000  # of the float64 that is infinite; NaNs are above


@dataclass(frozen=True, slots=True)
class NodeScalars:
    """What one virtual node reports of one attempt at a step."""

    total: float  # the loss, summed over its weight
    weight: float
    ids: int  # digest of the examples it loaded
    integers: int  # digest of the integer buffers it left behind
    unclean: int  # 1 + the index of the first gradient that was not finite, else 0
    is_mean: bool  # whether loss_fn returned a mean, not (total, weight)
    born: bool = False  # whether its forward made a buffer, or a larger one


@dataclass(frozen=True, slots=True)
class StepScalars:
    """The reports of all virtual nodes that had examples, and the largest value each tensor took over all of them."""

    nodes: dict[int, NodeScalars]
    peaks: list[int]  # bits of a float64; -1 where no virtual node produced anything

    @property
    def total(self) -> float:
        return sum(node.total for node in self.nodes.values())

    @property
    def weight(self) -> float:
        return sum(node.weight for node in self.nodes.values())


def reduce_scalars(mine: dict[int, NodeScalars], peaks: list[int], virtual_nodes: int, group: Group | None) -> Tensor:
    """Combine what the workers' virtual nodes report, packed for ``read_scalars``."""
    slots = [_ABSENT] * (_FIELDS * virtual_nodes)
    for node, scalars in mine.items():
        slots[_FIELDS * node : _FIELDS * (node + 1)] = _encode(scalars)
    return _reduced(slots + peaks, group)


def read_scalars(packed: Tensor, virtual_nodes: int) -> StepScalars:
    """What ``reduce_scalars`` has packed."""
    numbers = packed.tolist()
    nodes = {
        node: _decode(numbers[_FIELDS * node : _FIELDS * (node + 1)])
        for node in range(virtual_nodes)
        if numbers[_FIELDS * node + 2] != _ABSENT
    }
    return StepScalars(nodes, numbers[_FIELDS * virtual_nodes :])


def reduce_pairs(mine: dict[int, tuple[float, float]], count: int, group: Group | None) -> Tensor:
    """Pairs of numbers, of which each worker has some, packed for ``read_pairs``."""
    slots = [_ABSENT] * (2 * count)
    for index, (one, other) in mine.items():
        slots[2 * index : 2 * index + 2] = _float_bits(one), _float_bits(other)
    return _reduced(slots, group)


def read_pairs(packed: Tensor) -> list[tuple[float, float]]:
    """What ``reduce_pairs`` has packed, in order."""
    numbers = [_bits_float(bits) for bits in packed.tolist()]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _reduced(slots: list[int], group: Group | None) -> Tensor:
    packed = torch.tensor(slots, dtype=torch.int64)
    if group is not None:
        group.max(packed).wait()
    return packed


def _encode(scalars: NodeScalars) -> list[int]:
    return [
        _float_bits(scalars.total),
        _float_bits(scalars.weight),
        scalars.ids,
        scalars.integers,
        scalars.unclean,
        int(scalars.is_mean),
        int(scalars.born),
    ]


def _decode(fields: list[int]) -> NodeScalars:
    total, weight, ids, integers, unclean, is_mean, born = fields
    return NodeScalars(_bits_float(total), _bits_float(weight), ids, integers, unclean, bool(is_mean), bool(born))


def _float_bits(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _bits_float(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])


def peak_value(bits: int) -> float:
    """The float64 whose bits are *bits*; nothing there counts as zero."""
    return _bits_float(bits) if bits > 0 else 0.0
