"""The few numbers of each virtual node that every worker must see, reduced in one small all-reduce.

Each number travels in a slot of its own, written by the worker that ran the virtual node and lowest elsewhere; the
maximum over workers is then what was written, bit by bit, whatever the order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from virtualflow.core.membership import Group

ABSENT = -(2**63)
_FIELDS = 8
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
    unnamed: bool = False  # whether it reports a metric that has no slot yet
    metrics: dict[str, tuple[float, float]] = field(default_factory=dict)  # for each name a total and a weight


@dataclass(frozen=True, slots=True)
class StepScalars:
    """The reports of all virtual nodes that had examples, and the largest value each tensor took over all of them."""

    nodes: dict[int, NodeScalars]
    peaks: list[int]  # bits of a float64; -1 where no virtual node produced anything
    failed: bool  # whether a worker has met an error, so that the rest says nothing
    witnessed: tuple[int, ...] = ()  # what a sentinel has packed

    @property
    def total(self) -> float:
        return sum(node.total for node in self.nodes.values())

    @property
    def weight(self) -> float:
        return sum(node.weight for node in self.nodes.values())


def reduce_scalars(
    mine: dict[int, NodeScalars] | None,
    peaks: list[int],
    virtual_nodes: int,
    names: Sequence[str],
    group: Group | None,
    witnessed: Sequence[int] = (),
) -> Tensor:
    """Combine what the workers' virtual nodes report, metrics under *names* included, packed for ``read_scalars``.

    *mine* is None on a worker that has met an error. Of what a sentinel has *witnessed*, each number has one writer.
    """
    width = _FIELDS + 2 * len(names)
    slots = [ABSENT] * (width * virtual_nodes)
    for node, scalars in (mine or {}).items():
        slots[width * node : width * (node + 1)] = [*encoded(scalars), *_encode_metrics(scalars, names)]
    return _reduced([*slots, *peaks, *witnessed, int(mine is None)], group)


def read_scalars(packed: Tensor, virtual_nodes: int, names: Sequence[str], witnessed: int = 0) -> StepScalars:
    """What ``reduce_scalars`` has packed, with this number of *witnessed* ones."""
    numbers = packed.tolist()
    width = _FIELDS + 2 * len(names)
    nodes = {
        node: _decode(numbers[width * node : width * (node + 1)], names)
        for node in range(virtual_nodes)
        if numbers[width * node + 2] != ABSENT
    }
    end = len(numbers) - 1 - witnessed
    return StepScalars(nodes, numbers[width * virtual_nodes : end], bool(numbers[-1]), tuple(numbers[end:-1]))


def reduce_pairs(mine: dict[int, tuple[float, float]], count: int, group: Group | None) -> Tensor:
    """Pairs of numbers, of which each worker has some, packed for ``read_pairs``."""
    slots = [ABSENT] * (2 * count)
    for index, (one, other) in mine.items():
        slots[2 * index : 2 * index + 2] = float_bits(one), float_bits(other)
    return _reduced(slots, group)


def read_pairs(packed: Tensor) -> list[tuple[float, float]]:
    """What ``reduce_pairs`` has packed, in order."""
    numbers = [bits_float(bits) for bits in packed.tolist()]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _reduced(slots: list[int], group: Group | None) -> Tensor:
    packed = torch.tensor(slots, dtype=torch.int64)
    if group is not None:
        group.max(packed).wait()
    return packed


def encoded(scalars: NodeScalars) -> list[int]:
    """The numbers that every virtual node reports, as they travel."""
    return [
        float_bits(scalars.total),
        float_bits(scalars.weight),
        scalars.ids,
        scalars.integers,
        scalars.unclean,
        int(scalars.is_mean),
        int(scalars.born),
        int(scalars.unnamed),
    ]


def _encode_metrics(scalars: NodeScalars, names: Sequence[str]) -> Iterator[int]:
    for name in names:
        numbers = scalars.metrics.get(name)
        yield from (ABSENT, ABSENT) if numbers is None else map(float_bits, numbers)


def _decode(fields: list[int], names: Sequence[str]) -> NodeScalars:
    total, weight, ids, integers, unclean, is_mean, born, unnamed = fields[:_FIELDS]
    # No weight is negative, so the bits of none are those of an absent one.
    pairs = zip(names, fields[_FIELDS::2], fields[_FIELDS + 1 :: 2], strict=True)
    return NodeScalars(
        bits_float(total),
        bits_float(weight),
        ids,
        integers,
        unclean,
        bool(is_mean),
        bool(born),
        bool(unnamed),
        {name: (bits_float(one), bits_float(other)) for name, one, other in pairs if other != ABSENT},
    )


def float_bits(value: float) -> int:
    """The bits of a float64."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def bits_float(bits: int) -> float:
    """The float64 with these bits."""
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])


def peak_value(bits: int) -> float:
    """The float64 whose bits are *bits*; nothing there counts as zero."""
    return bits_float(bits) if bits > 0 else 0.0
