"""The sum of the squares of many tensors, in one order that every kernel can keep.

Each tensor is cut into rows of squares. Rows are added by pairs, then the sums of pairs by pairs, and so on; at last
the lanes of the one row that is left are, half by half. What is missing to a power of two counts as zeros.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

LANES = 4096  # accumulate.c names the same number
BLOCK_ROWS = 2048  # at once, which bounds the memory that this takes, and the launches
STEM_LEVELS = 5  # of the tree are summed block by block, and the rest for all blocks together, in fewer launches
LEVELS = 48  # more rows than any memory has

Piece = tuple[int, int, int, int]  # a tensor, its first and last element, and the row where it begins in its block


def blocks(lengths: Sequence[int]) -> Iterator[list[Piece]]:
    """The rows of tensors of these *lengths*, enough at once that each block is a number of whole stems."""
    pieces: list[Piece] = []
    row = 0
    for tensor, length in enumerate(lengths):
        start = 0
        while start < length:
            stop = min(length, start + LANES * (BLOCK_ROWS - row))
            pieces.append((tensor, start, stop, row))
            row += -(-(stop - start) // LANES)
            start = stop
            if row == BLOCK_ROWS:
                yield pieces
                pieces, row = [], 0
    if pieces:
        yield pieces


def sum_of_squares(tensors: Sequence[Tensor]) -> Tensor:
    """The sum over all elements of the flat *tensors*, as a float64 where they are."""
    stems = [_stems(tensors, pieces) for pieces in blocks([len(tensor) for tensor in tensors])]
    if not stems:
        return torch.zeros((), dtype=torch.float64)
    return sum_of_lanes(_by_pairs(torch.cat(stems))[0])


def sum_of_lanes(lanes: Tensor) -> Tensor:
    """The sum of one row."""
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = lanes[:half] + lanes[half:]
    return lanes.reshape(())


def root_of(tree: Tensor, rows: int) -> Tensor:
    """The sum of the *rows* that a kernel has pushed into *tree*: its levels in use, from the smallest."""
    lanes = torch.zeros(LANES, dtype=torch.float64)
    for level in range(rows.bit_length()):
        if rows >> level & 1:
            lanes = tree[level] + lanes
    return sum_of_lanes(lanes)


def scaled_norm(tensors: Sequence[Tensor]) -> float:
    """The 2-norm where squares of float64 may have left its range."""
    filled = [tensor for tensor in tensors if len(tensor)]
    peaks = [float(tensor.abs().max()) for tensor in filled]
    peak = math.nan if any(map(math.isnan, peaks)) else max(peaks, default=0.0)
    if not 0.0 < peak < math.inf:
        return peak
    exponent = math.frexp(peak)[1]
    scaled = [torch.ldexp(tensor.double(), torch.tensor(-exponent, device=tensor.device)) for tensor in filled]
    try:
        return math.ldexp(math.sqrt(float(sum_of_squares(scaled))), exponent)
    except OverflowError:
        return math.inf


def _stems(tensors: Sequence[Tensor], pieces: list[Piece]) -> Tensor:
    rows, stem = pieces[-1][3] + -(-(pieces[-1][2] - pieces[-1][1]) // LANES), 1 << STEM_LEVELS
    device = tensors[pieces[0][0]].device
    squares = torch.zeros(-(-rows // stem) * stem, LANES, dtype=torch.float64, device=device)
    flat = squares.view(-1)
    targets = [flat[row * LANES : row * LANES + stop - start] for _, start, stop, row in pieces]
    torch._foreach_copy_(targets, [tensors[tensor][start:stop] for tensor, start, stop, _ in pieces])
    return _by_pairs(squares.mul_(squares), STEM_LEVELS)


def _by_pairs(rows: Tensor, levels: int = LEVELS) -> Tensor:
    while len(rows) > 1 and levels:
        if len(rows) % 2:
            rows = torch.cat([rows, torch.zeros_like(rows[:1])])
        rows = rows[0::2] + rows[1::2]
        levels -= 1
    return rows
