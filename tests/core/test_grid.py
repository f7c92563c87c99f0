"""Sums on the grid are exact: the order of addition does not matter."""

import math
import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualflow.core import grid
from virtualflow.core.grid import Grid

floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


def rounded(values: list[float], where: Grid) -> list[float]:
    constant = np.float64(where.constant)
    return [float((np.float64(value) + constant) - constant) for value in values]


@settings(deadline=None)
@given(st.lists(floats, min_size=1, max_size=64), st.integers(-20, 20), st.randoms(use_true_random=False))
def test_an_accepted_sum_does_not_depend_on_the_order(values: list[float], drift: int, order: random.Random) -> None:
    peak = max(abs(value) for value in values)
    where = grid.grid_for(math.ldexp(peak, drift), len(values))
    if not grid.fits(where, peak, len(values)):
        where = grid.grid_for(peak, len(values))
    assert grid.fits(where, peak, len(values))
    addends = rounded(values, where)
    shuffled = order.sample(addends, len(addends))
    halves = sum(shuffled[::2]) + sum(shuffled[1::2])
    assert sum(addends) == sum(shuffled) == halves == math.fsum(addends)


@settings(deadline=None)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=64),
    st.randoms(use_true_random=False),
)
def test_sums_of_float64_are_exact_up_to_their_range_and_refused_beyond(
    values: list[float], order: random.Random
) -> None:
    peak = max(abs(value) for value in values)
    where = grid.grid_for(peak, len(values), grid.LOWEST_DOUBLE)
    assert math.isfinite(where.constant)
    assert grid.fits(where, peak, len(values), grid.LOWEST_DOUBLE) == grid.summable(peak, len(values))
    if grid.summable(peak, len(values)):
        addends = rounded(values, where)
        shuffled = order.sample(addends, len(addends))
        assert sum(addends) == sum(shuffled) == math.fsum(addends)
        assert all(
            abs(value - near) <= peak * 2.0**-grid.PRECISION for value, near in zip(values, addends, strict=True)
        )


@settings(deadline=None)
@given(st.lists(floats, min_size=1, max_size=32))
def test_rounding_keeps_28_bits_below_the_peak(values: list[float]) -> None:
    peak = max(abs(value) for value in values)
    where = grid.grid_for(peak, len(values))
    for value, near in zip(values, rounded(values, where), strict=True):
        assert abs(value - near) <= peak * 2.0**-grid.PRECISION


def test_the_lowest_grid_rounds_no_float32() -> None:
    smallest = 2.0**-149
    assert rounded([smallest, 3 * smallest], grid.grid_for(0.0, 4)) == [smallest, 3 * smallest]


def test_a_peak_that_jumps_or_falls_far_makes_a_replay() -> None:
    where = grid.grid_for(1.0, 8)
    assert grid.fits(where, 200.0, 8)
    assert not grid.fits(where, 300.0, 8)
    assert grid.fits(where, 1e-3, 8)
    assert not grid.fits(where, 1e-6, 8)


def test_a_tensor_that_was_zero_keeps_its_grid() -> None:
    where = grid.grid_for(5.0, 8)
    assert grid.after(where, 0.0, 8) == where
    assert grid.fits(where, 0.0, 8)
