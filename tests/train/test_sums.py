"""Sums over virtual nodes, alone: which tensors take part, on which grid, and what is found out on the way."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from virtualflow.core import grid
from virtualflow.errors import NonFiniteError
from virtualflow.train.readback import Readback
from virtualflow.train.scalars import peak_value
from virtualflow.train.sums import Sums, in_range

SIZES = {"first": 3, "middle": 5, "last": 2}


def made(nodes: int = 4, *, exact: bool = True) -> Sums:
    sums = Sums(nodes, exact=exact)
    sums.adopt({name: torch.zeros(size) for name, size in SIZES.items()})
    return sums


def attempt(sums: Sums, *nodes: dict[int, Tensor]) -> tuple[list[int], list[int], list[int]]:
    """One attempt in which virtual nodes add these tensors; the peaks, and what was not clean by node and tensor."""
    sums.begin()
    for values in nodes:
        sums.begin_node()
        for index, value in values.items():
            sums.add(index, value)
    readback = Readback()
    peaks, unclean, tensors = sums.peaks(readback), sums.unclean(readback), sums.unclean_tensors(readback)
    readback.read()
    return peaks(), unclean(), tensors()


def test_tensors_take_part_from_the_replay_on_in_the_order_of_backward() -> None:
    sums, ones = made(), {0: torch.ones(3), 2: torch.ones(2)}
    peaks, _, unlisted = attempt(sums, ones)
    assert (sums.order, sorted(unlisted), peaks[1]) == ([], [0, 2], -1)
    assert not sums.accept(peaks)
    peaks, unclean, unlisted = attempt(sums, ones, ones)
    assert sums.accept(peaks)
    assert (sums.order, unlisted, unclean) == ([2, 0], [], [0, 0])
    assert [sums.slot(index) for index in range(3)] == [1, None, 0]
    sums.complete(range(2))
    sums.divide(4.0)
    assert sums.result(0).tolist() == [0.5] * 3
    assert sums.result(2).tolist() == [0.5] * 2


def test_begin_says_whether_other_tensors_may_take_part() -> None:
    sums = made()
    assert sums.begin()
    assert not sums.begin()
    sums.set_grids({"middle": 3})
    assert sums.begin()
    assert sums.order == [1]
    assert sums.grids_by_name() == {"middle": 3}


def test_an_attempt_forgets_the_sums_of_the_one_before() -> None:
    sums = made()
    sums.set_grids(dict.fromkeys(SIZES, 10))
    attempt(sums, {0: torch.ones(3)})
    attempt(sums, {0: torch.ones(3)})
    sums.complete(range(3))
    sums.divide(1.0)
    assert sums.result(0).tolist() == [1.0] * 3


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_a_sum_has_the_same_bits_in_any_order(order: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    addends = [torch.randn(3) * 10.0 ** -(3 * n) for n in range(3)]
    found = []
    for numbers in (order, (0, 1, 2)):
        sums = made(3)
        sums.set_grids({"first": 4})
        attempt(sums, *({0: addends[number]} for number in numbers))
        sums.complete(range(1))
        sums.divide(3.0)
        found.append(sums.result(0).tolist())
    assert found[0] == found[1]


def test_a_peak_that_outgrows_its_grid_has_the_step_replayed_on_a_coarser_one() -> None:
    sums = made()
    sums.set_grids({"first": -20, "last": 10})
    peaks, *_ = attempt(sums, {0: torch.full((3,), 64.0), 2: torch.ones(2)})
    assert [peak_value(peaks[index]) for index in (0, 2)] == [64.0, 1.0]
    assert not sums.accept(peaks)
    assert sums.grids_by_name() == {"first": grid.grid_for(64.0, 4).exponent, "last": 10}
    assert sums.accept(peaks)


def test_grids_follow_the_peaks_after_a_step_but_never_those_of_fast_sums_and_integers() -> None:
    for sums, moves in ((made(), True), (made(exact=False), False)):
        sums.set_grids({"first": 12})
        peaks, *_ = attempt(sums, {0: torch.ones(3)})
        sums.commit(peaks)
        assert (sums.grids_by_name()["first"] == grid.grid_for(1.0, 4).exponent) is moves
    counts = Sums(4, exact=True)
    counts.adopt({"count": torch.zeros(1, dtype=torch.int64)})
    assert not counts.accept([0])
    assert counts.grids_by_name() == {"count": grid.INTEGERS}
    counts.commit([0])
    assert counts.grids_by_name() == {"count": grid.INTEGERS}


def test_a_double_may_lie_on_a_finer_grid_than_a_float() -> None:
    sums = Sums(4, exact=True)
    sums.adopt({"double": torch.zeros(1, dtype=torch.float64), "float": torch.zeros(1)})
    assert not sums.accept([0, 0])  # both were zero
    assert sums.grids_by_name() == {"double": grid.LOWEST_DOUBLE, "float": grid.LOWEST}


@pytest.mark.parametrize("takes_part", [False, True])
def test_what_is_not_finite_is_found_by_virtual_node_and_tensor(takes_part: bool) -> None:
    sums = made()
    if takes_part:
        sums.set_grids(dict.fromkeys(SIZES, 10))
    fine, odd = {0: torch.ones(3), 1: torch.ones(5)}, {0: torch.ones(3), 1: torch.full((5,), math.inf)}
    _, unclean, tensors = attempt(sums, fine, odd, fine)
    assert unclean == [0, 2, 0]
    assert 1 in tensors


def test_addends_beyond_the_range_of_their_sum_are_refused_by_name() -> None:
    sums = Sums(16, exact=True)
    sums.adopt({"weight": torch.zeros(1, dtype=torch.float64)})
    sums.begin()
    sums.begin_node()
    sums.add(0, torch.tensor([1e308], dtype=torch.float64))
    readback = Readback()
    peaks = sums.peaks(readback)
    readback.read()
    with pytest.raises(NonFiniteError, match=r"'weight' took values up to 1e\+308.*16 virtual nodes"):
        sums.accept(peaks())


@pytest.mark.parametrize("scale", [1e-180, 1.0, 1e180])
def test_the_norm_is_right_where_squares_leave_the_range(scale: float) -> None:
    sums = Sums(1, exact=True)
    sums.adopt({"weight": torch.zeros(2, dtype=torch.float64)})
    value: Any = {0: torch.tensor([3.0, 4.0], dtype=torch.float64) * scale}
    peaks, *_ = attempt(sums, value)
    sums.accept(peaks)
    attempt(sums, value)
    sums.complete(range(1))
    squares = sums.divide(1.0, squares=True)
    assert squares is not None
    assert in_range(float(squares)) is (scale == 1.0)
    assert sums.norm(float(squares)) == pytest.approx(5.0 * scale)
