"""The order in which gradients are sent: the same on every worker, whatever order they come in."""

from __future__ import annotations

import itertools

import pytest

from virtualflow.train.buckets import Buckets, cut


class Launched:
    def __init__(self) -> None:
        self.buckets: list[range] = []
        self.waited = 0

    def __call__(self, bucket: range) -> Launched:
        self.buckets.append(bucket)
        return self

    def wait(self) -> None:
        self.waited += 1


@pytest.mark.parametrize(
    ("sizes", "buckets"),
    [
        ([], []),
        ([3], [range(0, 1)]),
        ([4, 4, 4], [range(0, 2), range(2, 3)]),
        ([100, 1, 1], [range(0, 1), range(1, 3)]),
    ],
)
def test_items_are_grouped_in_order(sizes: list[int], buckets: list[range]) -> None:
    assert cut(sizes, bucket_bytes=8) == buckets


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_buckets_are_launched_in_their_order(order: tuple[int, ...]) -> None:
    launched = Launched()
    buckets = [range(0, 2), range(2, 3), range(3, 4)]
    sending = Buckets(buckets, launched)
    for item in order:
        sending.ready(item)
        done = set(order[: order.index(item) + 1])
        assert launched.buckets == list(itertools.takewhile(lambda bucket: done >= set(bucket), buckets))  # noqa: B023
    sending.flush()
    assert (launched.buckets, launched.waited) == (buckets, 3)


def test_flush_sends_what_nothing_was_added_to_and_restart_forgets() -> None:
    launched = Launched()
    sending = Buckets([range(0, 1), range(1, 2)], launched)
    sending.ready(1)
    assert launched.buckets == []
    sending.flush()
    sending.restart()
    sending.ready(0)
    assert launched.buckets == [range(0, 1), range(1, 2), range(0, 1)]
