"""The tree of squares in branches: the same bits, whoever computes which rows."""

from __future__ import annotations

import random

import pytest
import torch

from virtualflow.train.sharded.square_runs import branches, joined, rows_of, squares_of, total
from virtualflow.train.square_tree import LANES, sum_of_squares


def test_branches_are_whole_and_cover_the_rows() -> None:
    for first in range(20):
        for last in range(first, 40):
            rows = [row for level, place in branches(first, last) for row in range(place << level, place + 1 << level)]
            assert rows == list(range(first, last))


@pytest.mark.parametrize("seed", range(5))
def test_the_sum_does_not_depend_on_who_computes_what(seed: int) -> None:
    chance, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    lengths = [chance.choice([1, 100, LANES, 3 * LANES + 5, 9 * LANES]) for _ in range(7)]
    tensors = [torch.randn(length, generator=generator) for length in lengths]
    blocks, row = [], 0
    for tensor in tensors:
        for piece in tensor.split(2 * LANES):
            blocks.append((row, piece))
            row += rows_of(len(piece))
    parts, place = [], 0
    while place < len(blocks):  # runs of one worker each
        end = chance.randint(place + 1, len(blocks))
        run = joined(part for first, piece in blocks[place:end] for part in squares_of(first, piece))
        last = blocks[end][0] if end < len(blocks) else row
        assert [branch for branch, _ in run] == branches(blocks[place][0], last)
        parts += run
        place = end
    assert total(parts) == float(sum_of_squares(tensors))
