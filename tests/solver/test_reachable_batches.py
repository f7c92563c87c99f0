"""Which batches devices can process in a time: as trying every way gives it, with as few devices as that needs."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualflow.core.devices import Pool
from virtualflow.solver.node_shares import DeviceGroup
from virtualflow.solver.reachable_batches import Batches, unreachable

BATCH = 24


def group(name: str, count: int, node_size: int, seconds: float) -> DeviceGroup:
    return DeviceGroup(Pool(name, (count,)), node_size, seconds, 0.0)


@st.composite
def pools(draw: st.DrawFn) -> tuple[list[list[DeviceGroup]], list[int]]:
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
    choices = [
        [
            group("ab"[place], count, size, draw(st.integers(1, 5)) * size / 10)
            for size in draw(st.lists(st.sampled_from([2, 3, 4, 8]), min_size=1, max_size=2, unique=True))
        ]
        for place, count in enumerate(counts)
    ]
    return choices, counts


def by_trying(choices: list[list[DeviceGroup]], counts: list[int], limit: float) -> int | None:
    """The fewest devices that make the batch within the limit; None if none do."""
    ways = []
    for groups, count in zip(choices, counts, strict=True):
        ways.append(
            [
                (one.node_size * nodes, -(-nodes // one.fits(limit)) if nodes else 0)
                for one in groups
                for nodes in range(count * one.fits(limit) + 1)
            ]
        )
    devices = [sum(n for _, n in way) for way in itertools.product(*ways) if sum(size for size, _ in way) == BATCH]
    return min(devices, default=None)


@settings(max_examples=60, deadline=None)
@given(pools(), st.sampled_from([0.5, 1.0, 2.0, 5.0]))
def test_a_batch_is_met_if_and_only_if_some_way_makes_it(
    made: tuple[list[list[DeviceGroup]], list[int]], limit: float
) -> None:
    choices, counts = made
    fewest, batches = by_trying(choices, counts, limit), Batches(choices, counts, BATCH)
    assert batches.meets(limit) == (fewest is not None)
    if fewest is not None:
        assert batches.could_meet(limit)
        shares = batches.shares(limit)
        assert sum(share.examples for share in shares) == BATCH
        assert sum(share.count for share in shares) == fewest


@settings(max_examples=60, deadline=None)
@given(pools())
def test_the_shortest_limit_meets_the_batch_and_any_shorter_one_does_not(
    made: tuple[list[list[DeviceGroup]], list[int]],
) -> None:
    batches = Batches(*made, BATCH)
    if batches.meets(float("inf")):
        shortest = batches.shortest(float("inf"))
        assert batches.meets(shortest)
        assert not batches.meets(shortest * (1 - 1e-6))


def test_a_batch_that_no_sizes_add_up_to_is_refused_with_its_neighbours() -> None:
    choices = [[group("a", 2, 4, 1.0), group("a", 2, 6, 1.0)]]
    assert not Batches(choices, [2], 9).meets(float("inf"))
    assert unreachable(choices, 9).endswith("The nearest that work: 8 and 10.")


@pytest.mark.parametrize("choices", [[], [[]]])
def test_without_profiles_the_batch_is_too_small(choices: list[list[DeviceGroup]]) -> None:
    assert "smaller than every node size" in unreachable(choices, 9)
