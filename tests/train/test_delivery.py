"""How gradients are packed on their way to those who sum them up."""

from __future__ import annotations

import pytest
import torch

from virtualflow.train.sharded.delivery import MOST_BYTES, MOST_UNDER_WAY, GradientPiece, bucket_bytes, buckets_of


def pieces(*tensors: tuple[int, int]) -> list[GradientPiece]:
    """For each tensor so many pieces of so many elements."""
    return [
        GradientPiece(tensor, number * elements, (number + 1) * elements, torch.float32, 0)
        for tensor, (count, elements) in enumerate(tensors)
        for number in range(count)
    ]


def test_small_tensors_share_a_bucket_and_the_end_of_a_large_one_closes_it() -> None:
    found = buckets_of(pieces((1, 10), (1, 10), (5, 50), (1, 10), (1, 10)), most=400)
    assert found == [range(0, 3), range(3, 5), range(5, 7), range(7, 9)]


@pytest.mark.parametrize("most", [1, 100, 4000])
def test_every_piece_is_in_one_bucket_and_no_bucket_holds_more_than_it_may(most: int) -> None:
    listed = pieces((3, 7), (1, 100), (20, 25), (2, 1))
    found = buckets_of(listed, most)
    assert [place for bucket in found for place in bucket] == list(range(len(listed)))
    assert all(len(bucket) == 1 or sum(listed[place].length for place in bucket) <= most for bucket in found)


@pytest.mark.parametrize("workers", [2, 3, 4, 8, 16, 32])
def test_what_arrives_at_a_time_does_not_grow_with_the_number_of_workers(workers: int) -> None:
    assert MOST_UNDER_WAY * (workers - 1) * bucket_bytes(workers) <= MOST_BYTES


def test_a_bucket_is_full_when_one_worker_would_get_too_much() -> None:
    by_turns = [GradientPiece(0, 10 * n, 10 * n + 10, torch.float32, n % 3) for n in range(9)]
    assert buckets_of(by_turns, most=40) == [range(0, 3), range(3, 6), range(6, 9)]
    assert buckets_of(by_turns, most=80) == [range(0, 6), range(6, 9)]
