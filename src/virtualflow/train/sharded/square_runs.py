"""The tree of squares (``square_tree``) where no worker has all rows: each computes the branches that it can, whole.

A branch is known by its level and its place there: it is the sum of ``2**level`` rows.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from virtualflow.train.square_tree import LANES, sum_of_lanes

Branch = tuple[int, int]


def rows_of(elements: int) -> int:
    """How many rows a tensor with this number of elements takes."""
    return -(-elements // LANES)


def branches(first: int, last: int) -> list[Branch]:
    """The fewest branches that are the rows from *first* up to *last*, in order."""
    left: list[Branch] = []
    right: list[Branch] = []
    level = 0
    while first < last:
        if first & 1:
            left.append((level, first))
            first += 1
        if last & 1:
            last -= 1
            right.append((level, last))
        first, last, level = first >> 1, last >> 1, level + 1
    return left + right[::-1]


def squares_of(first: int, values: Tensor) -> list[tuple[Branch, Tensor]]:
    """The branches of the rows of *values*, a vector whose first element begins row *first*."""
    last = first + rows_of(len(values))
    rows = torch.zeros((last - first) * LANES, dtype=torch.float64, device=values.device)
    rows[: len(values)] = values
    rows = rows.mul_(rows).view(-1, LANES)
    found: dict[Branch, Tensor] = {}
    level = 0
    while first < last:
        if first & 1:
            found[level, first] = rows[0]
            rows, first = rows[1:], first + 1
        if last & 1:
            last -= 1
            found[level, last] = rows[-1]
            rows = rows[:-1]
        if first < last:
            rows = rows[0::2] + rows[1::2]
        first, last, level = first >> 1, last >> 1, level + 1
    return sorted(found.items(), key=lambda item: item[0][1] << item[0][0])


def joined(parts: Iterable[tuple[Branch, Tensor]]) -> list[tuple[Branch, Tensor]]:
    """The same rows in the fewest branches; *parts* are in order."""
    stack: list[tuple[Branch, Tensor]] = []
    for (level, place), lanes in parts:
        while stack and place & 1 and stack[-1][0] == (level, place - 1):
            lanes = stack.pop()[1] + lanes
            level, place = level + 1, place >> 1
        stack.append(((level, place), lanes))
    return stack


def total(parts: Iterable[tuple[Branch, Tensor]]) -> float:
    """The sum of all rows, of which *parts* are the branches, in order, from the first row on."""
    lanes = torch.zeros(LANES, dtype=torch.float64)
    for _, branch in reversed(joined(parts)):  # from the smallest: what is missing to a power of two counts as zeros
        lanes = branch + lanes
    return float(sum_of_lanes(lanes))
