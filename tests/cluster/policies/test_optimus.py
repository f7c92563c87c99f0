"""Optimus: its authors' measurements worked by hand, the optimum it is meant to find, and its rounds."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualflow.cluster.job import Job
from virtualflow.cluster.policies import registry
from virtualflow.cluster.policies.optimus import shared_out
from virtualflow.cluster.throughput.table import Table
from virtualflow.core.devices import parse_pools
from virtualflow.sim import costs
from virtualflow.sim.engine import simulate

# ResNet-50, synchronous, on n workers and n parameter servers, n = 1 to 5: the workers' speeds added up. Figures of
# Optimus' authors (github.com/pengyanghua/DL2, config_speed.txt).
RESNET = (15.783, 27.285, 35.059, 32.422, 38.552)


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (2, [1, 1]),  # one each, whatever they gain
        (3, [2, 1]),  # the second device: the long job gains 267 s, the short one 53 s
        (4, [3, 1]),  # the long one's third: 81 s
        (5, [3, 2]),  # its fourth would slow it down, and two more gain 13 s each: less than 53 s
        (6, [3, 3]),  # the short one's third: 16 s
        (7, [3, 3]),  # a fourth helps nobody
        (8, [5, 3]),  # but two more help the long one
        (10, [5, 5]),
        (12, [5, 5]),
    ],
)
def test_the_authors_speeds_by_hand(devices: int, expected: list[int]) -> None:
    """10,000 and 2,000 to go: 634, 367, 285, 308 and 259 s for the long job, a fifth of that for the short one."""
    times = [[examples / speed for speed in RESNET] for examples in (10_000, 2_000)]
    assert shared_out(times, devices) == expected


@st.composite
def diminishing(draw: st.DrawFn) -> list[float]:
    """Seconds to the end on 1, 2, 3, ... devices, each of which gains less than the one before."""
    gains = sorted(draw(st.lists(st.integers(0, 50), max_size=4)), reverse=True)
    last = draw(st.integers(1, 50))
    return [float(last + sum(gains[place:])) for place in range(len(gains) + 1)]


@settings(max_examples=60, deadline=None)
@given(times=st.lists(diminishing(), min_size=1, max_size=4), more=st.integers(0, 8))
def test_where_gains_diminish_no_other_sharing_out_is_better(times: list[list[float]], more: int) -> None:
    """The paper's aim, the least sum of times to the end, by trying all."""
    devices = len(times) + more
    counts = shared_out(times, devices)
    assert min(counts) >= 1
    assert sum(counts) <= devices
    every = itertools.product(*(range(1, len(each) + 1) for each in times))
    best = min(
        sum(each[count - 1] for each, count in zip(times, some, strict=True)) for some in every if sum(some) <= devices
    )
    assert sum(each[count - 1] for each, count in zip(times, counts, strict=True)) == pytest.approx(best)


TABLE = Table({"v100": {("a", n): speed for n, speed in enumerate(RESNET, 1)}}, {})


def test_every_ten_minutes_what_is_left_to_do_decides() -> None:
    """After ten minutes, 39,000, 24,000 and 100,000 examples are left: the second device gains 1041, 631 and 2671 s."""
    jobs = [Job("long", 0.0, 5, 60_000, "a"), Job("short", 0.0, 5, 40_000, "a"), Job("late", 1.0, 5, 100_000, "a")]
    result = simulate(jobs, parse_pools("V100:5"), registry.make("optimus"), TABLE, costs.NONE)
    sizes = {each.job.id: [(s.start_seconds, len(s.devices)) for s in each.segments] for each in result.jobs}
    assert sizes["long"][:2] == [(0.0, 3), (600.0, 2)]
    assert sizes["short"][:2] == [(0.0, 2), (600.0, 1)]
    assert sizes["late"][0] == (600.0, 2)
    assert all(seconds % 600 == 0 for each in sizes.values() for seconds, _ in each)


def test_who_came_first_runs_if_there_are_too_few_devices() -> None:
    jobs = [Job(name, seconds, 5, 10_000, "a") for seconds, name in enumerate("abc", 1)]
    result = simulate(jobs, parse_pools("V100:2"), registry.make("optimus"), TABLE, costs.NONE)
    assert {each.job.id: each.start_seconds for each in result.jobs} == {"a": 600.0, "b": 600.0, "c": 1800.0}
