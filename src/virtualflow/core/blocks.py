"""The blocks in which the state of an optimizer is spread over devices, and which device holds which of them."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean

from virtualflow.core.devices import type_of
from virtualflow.core.mapping import DeviceId, Mapping
from virtualflow.errors import MappingError

BLOCK_ELEMENTS = 1 << 20  # a multiple of what the kernels of fused optimizers, and rows of squares, take at once
_RUNS = 8  # of blocks, for each device


@dataclass(frozen=True, slots=True, order=True)
class Block:
    """The elements of a tensor from *start* to *stop*, in the order of its memory."""

    tensor: str
    start: int
    stop: int

    @property
    def elements(self) -> int:
        return self.stop - self.start


def cut(tensor: str, elements: int, *, whole: bool) -> list[Block]:
    """The blocks of a tensor: one if it must stay *whole*, or is small."""
    size = max(elements, 1) if whole else BLOCK_ELEMENTS
    return [Block(tensor, start, min(start + size, elements)) for start in range(0, max(elements, 1), size)]


def place(sizes: Sequence[int], devices: int, copies: int, shares: Sequence[float] | None = None) -> list[list[int]]:
    """For each block the places of its holders among *devices*, of which the first one speaks for it.

    Each block has *copies* holders, or all devices if those are fewer. A device holds its part of *shares* of the whole
    (equal parts if there are none given), as far as it can: no device holds a block twice.
    """
    if devices < 1 or copies < 1:
        raise MappingError(f"cannot place blocks in {copies} copies on {devices} devices")
    copies = min(copies, devices)
    # Wrapped around: copy k of what lies at x is at x + k on a line that is divided among the devices. None of them has
    # more than a length of 1 there, so no two copies meet.
    ends = list(accumulate(_lengths(devices, copies, shares)))
    total = max(sum(sizes), 1)
    holders = []
    before = 0
    order = _spread(sizes, devices)
    for number in order:
        middle = (before + sizes[number] / 2) / total
        held = [min(bisect_right(ends, middle + copy), devices - 1) for copy in range(copies)]
        holders.append(held if len(set(held)) == copies else _distinct(held, devices))
        before += sizes[number]
    placed = zip(order, _take_turns(holders, [sizes[number] for number in order]), strict=True)
    return [held for _, held in sorted(placed)]


def shares(devices: Sequence[DeviceId], mapping: Mapping, memories: Sequence[int] = ()) -> list[float]:
    """The part of each of *devices*: by speed, and no more than by memory if all say how many bytes they have.

    The *mapping* tells how fast devices are, by their types: what one of them has a node more of is rounding.
    """
    nodes: dict[str, list[int]] = {}
    for device, count in Counter(mapping.devices).items():
        nodes.setdefault(type_of(device), []).append(count)
    by_speed = _normed([fmean(nodes.get(type_of(device), [1])) for device in devices])
    if not memories or not all(memories):
        return by_speed
    return [min(speed, memory) for speed, memory in zip(by_speed, _normed(memories), strict=True)]


def _spread(sizes: Sequence[int], devices: int) -> list[int]:
    """The blocks in an order that brings what lies side by side to different devices.

    Backward makes gradients side by side, and those who sum them up should all have something to do. It is runs of
    blocks that are spread, some to each device: each costs a few branches of the tree of squares.
    """
    run = max(sum(sizes) / (_RUNS * devices), BLOCK_ELEMENTS)
    turns = []
    before = 0
    for size in sizes:
        turns.append(int((before + size / 2) / run) % devices)
        before += size
    return sorted(range(len(sizes)), key=lambda number: turns[number])


def _normed(values: Sequence[float]) -> list[float]:
    return [value / sum(values) for value in values]


def _lengths(devices: int, copies: int, shares: Sequence[float] | None) -> list[float]:
    """How much of the line each device gets: in proportion to its share, and 1 at most."""
    wanted = list(shares) if shares is not None else [1.0] * devices
    if len(wanted) != devices or min(wanted) < 0 or sum(wanted) <= 0:
        raise MappingError(f"cannot divide blocks among {devices} devices by the shares {wanted}")
    lengths = [0.0] * devices
    free, left = set(range(devices)), float(copies)
    while free:
        weight = sum(wanted[device] for device in free)
        full = {d for d in free if weight <= 0 or left * wanted[d] / weight >= 1.0 - 1e-12}
        if not full:
            for device in free:
                lengths[device] = left * wanted[device] / weight
            break
        for device in full if weight > 0 else sorted(free)[: round(left)]:
            lengths[device] = 1.0
            left -= 1.0
        free -= full
        if left <= 0:
            break
    return lengths


def _distinct(held: list[int], devices: int) -> list[int]:
    """Where rounding has made two copies meet, the next devices instead."""
    distinct: list[int] = []
    for device in held:
        while device in distinct:
            device = (device + 1) % devices
        distinct.append(device)
    return distinct


def _take_turns(holders: list[list[int]], sizes: Sequence[int]) -> list[list[int]]:
    """Of blocks in a row with the same holders, each holder speaks for a part: all have about as much to send."""
    placed: list[list[int]] = []
    begin = 0
    while begin < len(holders):
        end = begin
        while end < len(holders) and set(holders[end]) == set(holders[begin]):
            end += 1
        copies, total, before = len(holders[begin]), max(sum(sizes[begin:end]), 1), 0
        for size in sizes[begin:end]:
            turn = min(int((before + size / 2) * copies / total), copies - 1)
            held = sorted(holders[begin])
            placed.append(held[turn:] + held[:turn])
            before += size
        begin = end
    return placed
