"""Dividing devices by weight, in whole numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualflow.cluster.policies.shares import Claim, largest_remainder, powers_of_two, protect, rounding
from virtualflow.errors import ConfigError

claims = st.lists(
    st.builds(Claim.of, st.sampled_from([1.0, 5.0, 10.0, 0.3]), st.integers(0, 20).map(float), st.integers(1, 12)),
    min_size=1,
    max_size=12,
)


def claim(weight: float, demand: int, arrival: float = 0.0) -> Claim:
    return Claim.of(weight, arrival, demand)


def test_the_papers_example_leaves_no_device_idle() -> None:
    # A wants 2 and B wants 8 of 8: without elasticity, 6 would idle for as long as A runs.
    assert largest_remainder([claim(1, 2), claim(1, 8)], 8) == [2, 6]
    assert powers_of_two([claim(1, 2), claim(1, 8)], 8) == [2, 4]


def test_three_jobs_of_the_paper_share_four_devices() -> None:
    assert largest_remainder([claim(1, 4), claim(5, 2)], 4) == [2, 2]
    assert largest_remainder([claim(1, 4), claim(5, 2), claim(10, 4)], 4) == [1, 1, 2]


def test_left_over_devices_go_to_the_largest_remainder_then_priority_then_arrival() -> None:
    assert largest_remainder([claim(1, 8), claim(2, 8)], 8) == [3, 5]  # 2.67 and 5.33
    assert largest_remainder([claim(1, 8, 1.0), claim(1, 8, 0.0)], 3) == [1, 2]
    assert largest_remainder([claim(1, 9), claim(3, 9)], 10) == [2, 8]  # 2.5 and 7.5


@settings(deadline=None)
@given(claims, st.integers(0, 40))
def test_shares_add_up_and_stay_between_one_and_the_demand(made: list[Claim], more: int) -> None:
    devices = len(made) + more
    given_out = largest_remainder(made, devices)
    assert sum(given_out) == min(devices, sum(each.demand for each in made))
    assert all(1 <= count <= each.demand for count, each in zip(given_out, made, strict=True))


@settings(deadline=None)
@given(claims, st.integers(0, 40))
def test_of_equal_demands_the_larger_weight_gets_no_less(made: list[Claim], more: int) -> None:
    result = list(zip(made, largest_remainder(made, len(made) + more), strict=True))
    for one, count in result:
        assert all(count >= other_count for other, other_count in result
                   if other.demand == one.demand and other.weight < one.weight)  # fmt: skip


@settings(deadline=None)
@given(claims, st.integers(0, 40))
def test_powers_of_two_never_exceed_the_devices(made: list[Claim], more: int) -> None:
    devices = len(made) + more
    given_out = powers_of_two(made, devices)
    assert sum(given_out) <= devices
    for count, each in zip(given_out, made, strict=True):
        assert count == each.demand or count & (count - 1) == 0
        assert 1 <= count <= each.demand


def test_powers_of_two_double_the_highest_priority_first() -> None:
    assert powers_of_two([claim(1, 8), claim(10, 8)], 8) == [4, 4]  # 8 would be too many for the second
    assert powers_of_two([claim(1, 4), claim(5, 4), claim(10, 4)], 8) == [2, 2, 4]


@pytest.mark.parametrize(
    ("made", "devices", "expected"),
    [
        # Shares of 5, 2.5 and 0.5 are floored to 4, 2 and at least 1. One is left: only the last can be doubled by it.
        ([(10, 8), (5, 8), (1, 8)], 8, [4, 2, 2]),
        # 1.33 each: 1, 1, 1, and of equal ones the first is doubled.
        ([(1, 4), (1, 4), (1, 4)], 4, [2, 1, 1]),
        # 4.9, 2.9 and three times 0.05: 4, 2, 1, 1, 1 is one too many. The lowest cannot be halved, so the next one is.
        ([(10, 8), (6, 8), (0.1, 8), (0.1, 8), (0.1, 8)], 8, [4, 1, 1, 1, 1]),
        # 4.3 and four times 0.4: 4, 1, 1, 1, 1 is two too many, and only the highest can give.
        ([(10, 8), (1, 8), (1, 8), (1, 8), (1, 8)], 6, [2, 1, 1, 1, 1]),
        # 13.3 is floored to 8, more than the demand: 4. The other's share of the 12 that are left is floored to 8.
        ([(5, 4), (1, 16)], 16, [4, 8]),
        # A demand that is no power of two is met if its share covers it: 4 for 3; then 5 for the other, floored to 4.
        ([(10, 3), (1, 8)], 8, [3, 4]),
        # 6 and 2, floored to 4 and 2: two are left, too few to double the first, and enough for the second.
        ([(3, 8), (1, 8)], 8, [4, 4]),
    ],
)
def test_powers_of_two_by_hand(made: list[tuple[float, int]], devices: int, expected: list[int]) -> None:
    """The author's rule: floor; if that is too many, halve from the lowest priority on; double from the highest on."""
    assert powers_of_two([claim(*each) for each in made], devices) == expected


@settings(deadline=None)
@given(claims, st.data())
def test_protected_claims_do_not_shrink_while_a_lower_one_grows(made: list[Claim], data: st.DataObject) -> None:
    before = [data.draw(st.integers(0, each.demand)) for each in made]
    after = largest_remainder(made, len(made) + data.draw(st.integers(0, 20)))
    total = sum(after)
    protect(made, before, after)
    assert sum(after) == total
    for loser in range(len(made)):
        for winner in range(len(made)):
            if made[winner].weight < made[loser].weight and after[loser] < before[loser]:
                assert after[winner] <= max(1, before[winner])


def test_an_unknown_rounding_is_refused() -> None:
    with pytest.raises(ConfigError, match="any, pow2"):
        rounding("up")
