"""Blocks and their holders: pure values, the same on every worker."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtualflow.core import blocks
from virtualflow.core.blocks import Block, cut, place
from virtualflow.core.mapping import Mapping
from virtualflow.errors import MappingError


def test_large_tensors_are_cut_and_small_ones_are_not() -> None:
    size = blocks.BLOCK_ELEMENTS
    assert cut("a", 5, whole=False) == [Block("a", 0, 5)]
    assert cut("a", size, whole=False) == [Block("a", 0, size)]
    assert cut("a", 2 * size + 1, whole=False) == [
        Block("a", 0, size),
        Block("a", size, 2 * size),
        Block("a", 2 * size, 2 * size + 1),
    ]
    assert cut("a", 2 * size + 1, whole=True) == [Block("a", 0, 2 * size + 1)]
    assert cut("scalar", 0, whole=False) == [Block("scalar", 0, 0)]


def test_blocks_begin_where_rows_of_squares_and_fused_kernels_do() -> None:
    assert blocks.BLOCK_ELEMENTS % 4096 == 0


@given(
    st.lists(st.integers(0, 100), min_size=1, max_size=60),
    st.integers(1, 9),
    st.integers(1, 5),
    st.one_of(st.none(), st.lists(st.floats(0.1, 10), min_size=9, max_size=9)),
)
def test_each_block_has_as_many_holders_as_there_are_copies(
    sizes: list[int], devices: int, copies: int, shares: list[float] | None
) -> None:
    placed = place(sizes, devices, copies, shares[:devices] if shares else None)
    assert len(placed) == len(sizes)
    for held in placed:
        assert len(set(held)) == len(held) == min(copies, devices)
        assert set(held) <= set(range(devices))


@pytest.mark.parametrize("devices", range(1, 9))
@pytest.mark.parametrize("copies", [1, 2, 3])
def test_devices_hold_and_send_equal_parts(devices: int, copies: int) -> None:
    placed = place([10] * 840, devices, copies)
    held = Counter(device for holders in placed for device in holders)
    assert {held[device] for device in range(devices)} == {840 * min(copies, devices) // devices}
    spoken_for = Counter(holders[0] for holders in placed)
    assert max(spoken_for.values()) - min(spoken_for[device] for device in range(devices)) <= 840 // devices


def test_parts_follow_speed_by_type_and_memory() -> None:
    alike = Mapping(("0", "0", "0", "1", "1", "2", "2", "2"))
    assert blocks.shares(("0", "1", "2"), alike) == pytest.approx([1 / 3] * 3), "a node more is no speed"
    mixed = Mapping(("V100:0", "V100:0", "V100:0", "P100:0", "P100:1"))
    assert blocks.shares(("V100:0", "P100:0", "P100:1"), mixed) == pytest.approx([0.6, 0.2, 0.2])
    assert blocks.shares(("0", "1"), Mapping(("0", "1")), [10, 30]) == pytest.approx([0.25, 0.5])
    assert blocks.shares(("0", "1"), Mapping(("0", "1")), [10, 0]) == pytest.approx([0.5, 0.5]), "not all known"


def test_no_two_deaths_lose_a_block_of_three_copies() -> None:
    placed = place([7, 1, 5] * 20, 6, 3)
    for dead in combinations(range(6), 2):
        assert all(set(holders) - set(dead) for holders in placed)


def test_shares_decide_who_holds_how_much_and_nobody_holds_a_block_twice() -> None:
    placed = place([1] * 1000, 4, 2, [3, 1, 1, 1])
    held = Counter(device for holders in placed for device in holders)
    assert [held[device] for device in range(4)] == pytest.approx([1000, 333, 333, 333], abs=1)


def test_what_is_impossible_is_refused() -> None:
    with pytest.raises(MappingError, match="0 devices"):
        place([1], 0, 2)
    with pytest.raises(MappingError, match="shares"):
        place([1], 2, 2, [1.0])


@pytest.mark.parametrize("devices", [4, 6, 8])
def test_blocks_that_lie_side_by_side_are_of_different_devices(devices: int) -> None:
    speakers = [holders[0] for holders in place([blocks.BLOCK_ELEMENTS] * 4 * devices, devices, 2)]
    for start in range(0, len(speakers), devices):
        assert sorted(speakers[start : start + devices]) == list(range(devices))


def test_the_more_blocks_there_are_the_longer_their_runs() -> None:
    """Each run of one device's blocks costs some branches of the tree of squares, which travel."""
    speakers = [holders[0] for holders in place([blocks.BLOCK_ELEMENTS] * 4000, 8, 2)]
    runs = 1 + sum(one != other for one, other in pairwise(speakers))
    assert 8 < runs <= 80
