"""Which devices hold a job, and the grid that it gets there."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualflow.core.cell_schedule import peak_activations, timeline
from virtualflow.core.cells import pipelines, with_copies
from virtualflow.core.memory_needs import Fit, MemoryNeeds, fit, grid_within, least_peak, peak
from virtualflow.core.sizes import parse_size, size_text
from virtualflow.errors import ConfigError

needs = st.builds(
    MemoryNeeds,
    st.lists(st.integers(0, 9), min_size=1, max_size=6).map(tuple),
    st.integers(0, 20),
    st.integers(1, 3),
)


def names(count: int) -> tuple[str, ...]:
    return tuple(str(number) for number in range(count))


def test_a_model_that_is_not_cut_needs_all_of_it_on_each_device() -> None:
    whole = MemoryNeeds((10,), node=2)
    assert fit(whole, 12, 8, 1, 4) == Fit(1, 4, 12)
    assert fit(whole, 11, 8, 1, 4) is None


def test_four_equal_stages_without_copies_need_so_many_devices_as_have_room() -> None:
    stages = MemoryNeeds((4, 4, 4, 4), copies=1)
    assert [fit(stages, limit, 8, 1, 1) for limit in (16, 8, 4, 3)] == [Fit(1, 1, 16), Fit(2, 2, 8), Fit(4, 4, 4), None]


def test_copies_are_held_too() -> None:
    assert fit(MemoryNeeds((4, 4, 4, 4), copies=2), 8, 8, 1, 1) == Fit(4, 4, 8)
    assert fit(MemoryNeeds((4, 4, 4, 4), copies=2), 4, 8, 1, 1) == Fit(8, 8, 4)  # each stage runs on two


def test_more_devices_than_stages_do_not_get_more_of_the_model_each() -> None:
    """The usual grid of 4 stages on 5 devices is two pipelines, of 2 and 3, with half of the model on a device."""
    stages = MemoryNeeds((4, 4, 4, 4), copies=1)
    assert peak(with_copies(pipelines(4, 8, names(5)), 1), stages) == 8
    assert fit(stages, 4, 8, 1, 8) == Fit(4, 8, 4)
    cells = grid_within(stages, 4, 8, names(5))
    assert peak(cells, stages) == 4
    assert set(cells.devices) == set(names(5))


def test_stages_of_unequal_size_are_divided_by_size() -> None:
    stages = MemoryNeeds((6, 1, 1, 1), copies=1)
    assert grid_within(stages, None, 2, names(2)) == with_copies(pipelines(4, 2, names(2)), 1)
    assert grid_within(stages, 6, 2, names(2)).routes[0] == ("0", "1", "1", "1")


def test_where_nothing_fits_the_leanest_grid_is_taken() -> None:
    stages = MemoryNeeds((6, 1, 1, 1), copies=1)
    assert grid_within(stages, 1, 2, names(2)).routes[0] == ("0", "1", "1", "1")


def test_no_more_devices_than_virtual_nodes() -> None:
    assert fit(MemoryNeeds((4, 4, 4, 4), copies=1), 4, 3, 1, 1) is None


@settings(max_examples=150, deadline=None)
@given(needs=needs, nodes=st.integers(1, 8), devices=st.integers(1, 8), limit=st.integers(0, 60))
def test_a_grid_uses_every_device_and_keeps_within_the_limit_where_any_known_one_does(
    needs: MemoryNeeds, nodes: int, devices: int, limit: int
) -> None:
    if devices > nodes:
        devices = nodes
    cells = grid_within(needs, limit, nodes, names(devices))
    assert set(cells.devices) == set(names(devices))
    assert (cells.stages, cells.virtual_nodes) == (len(needs.stages), nodes)
    if needs.is_cut:
        assert (peak(cells, needs) <= limit) == (least_peak(needs, nodes, devices) <= limit)


@settings(max_examples=100, deadline=None)
@given(needs=needs, nodes=st.integers(1, 6), devices=st.integers(1, 6))
def test_activations_are_counted_no_lower_than_the_schedule_holds_them(
    needs: MemoryNeeds, nodes: int, devices: int
) -> None:
    cells = grid_within(needs, 0, nodes, names(min(devices, nodes)))
    only = MemoryNeeds((0,) * cells.stages, needs.node, needs.copies)
    most = max(peak_activations(timed.run for timed in line) for line in timeline(cells, "1f1b").values())
    assert peak(cells, only) >= needs.node * most / cells.stages


@settings(max_examples=100, deadline=None)
@given(needs=needs, nodes=st.integers(1, 8), limit=st.integers(0, 60), wanted=st.integers(1, 8))
def test_what_is_said_to_fit_does(needs: MemoryNeeds, nodes: int, limit: int, wanted: int) -> None:
    found = fit(needs, limit, nodes, 1, wanted)
    if found is None:
        assert all(least_peak(needs, nodes, n) > limit for n in range(1, min(nodes, wanted) + 1))
    else:
        assert all(least_peak(needs, nodes, n) <= limit for n in range(found.least, found.most + 1))
        assert found.most <= nodes
        assert found.least == 1 or least_peak(needs, nodes, found.least - 1) > limit


def test_sizes_are_read_and_written_as_people_do() -> None:
    assert [parse_size(text, "--memory") for text in ("512", "1.5G", "16GB", "2 gib")] == [
        512,
        3 << 29,
        16 << 30,
        2 << 30,
    ]
    assert [size_text(size) for size in (512, 3 << 29, 16 << 30, 1)] == ["512 bytes", "1.5 GB", "16 GB", "1 bytes"]
    assert size_text(math.inf) == "no limit"
    assert size_text((16 << 30) + (1 << 26)) == "16.1 GB"  # never less than it is
    with pytest.raises(ConfigError, match="--memory much: expected a size such as"):
        parse_size("much", "--memory")


@pytest.mark.parametrize("wrong", [((), 0, 2), ((-1,), 0, 2), ((1,), -1, 2), ((1,), 0, 0)])
def test_needs_that_make_no_sense_are_refused(wrong: tuple[tuple[int, ...], int, int]) -> None:
    with pytest.raises(ConfigError, match="expected a size for each stage"):
        MemoryNeeds(*wrong)
