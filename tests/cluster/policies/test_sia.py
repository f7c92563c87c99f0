"""Sia: the best configurations found by trying all, and what it does on one type and on several."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualflow.cluster.job import Job
from virtualflow.cluster.policies import registry
from virtualflow.cluster.policies.sia import WAITS, Way, chosen, configurations
from virtualflow.cluster.throughput.model import Profiled
from virtualflow.cluster.throughput.table import Table
from virtualflow.core.devices import parse_pools
from virtualflow.errors import ConfigError
from virtualflow.sim import costs
from virtualflow.sim.engine import simulate
from virtualflow.sim.pollux_applications import applications, beside

CAPACITY = {"T4": 4, "A100": 2}


def test_configurations_are_powers_of_two_on_a_machine_and_whole_machines() -> None:
    assert configurations(4, 19) == [1, 2, 4, 8, 12, 16]
    assert configurations(8, 5) == [1, 2, 4]


@st.composite
def ways(draw: st.DrawFn) -> list[Way]:
    found = []
    for job in range(draw(st.integers(1, 4))):
        for kind, count in draw(st.sets(st.sampled_from([("T4", 1), ("T4", 2), ("T4", 4), ("A100", 1), ("A100", 2)]))):
            found.append(Way(job, kind, count, draw(st.floats(0.05, 1.0))))
    return found


def total(some: Sequence[Way | None], jobs: int) -> float:
    return sum(way.cost for way in some if way) + WAITS * (jobs - sum(way is not None for way in some))


def fits(some: Sequence[Way | None]) -> bool:
    taken = {kind: sum(way.devices for way in some if way and way.device_type == kind) for kind in CAPACITY}
    return all(taken[kind] <= CAPACITY[kind] for kind in CAPACITY)


@settings(max_examples=20, deadline=None)
@given(ways=ways())
def test_no_other_choice_is_better(ways: list[Way]) -> None:
    found = chosen(ways, CAPACITY)
    jobs = sorted({way.job for way in ways})
    assert len({way.job for way in found}) == len(found)
    assert fits(found)
    best = min(
        total(some, len(jobs))
        for some in itertools.product(*([None, *(way for way in ways if way.job == job)] for job in jobs))
        if all(
            sum(way.devices for way in some if way and way.device_type == kind) <= CAPACITY[kind] for kind in CAPACITY
        )
    )
    assert total(found, len(jobs)) == pytest.approx(best, rel=1e-3)


def test_the_job_that_gains_the_most_by_a_type_gets_it() -> None:
    """a is four times as fast on a V100 as on a K80, b is twice as fast."""
    alone = {"v100": {("a", 1): 4.0, ("b", 1): 2.0}, "k80": {("a", 1): 1.0, ("b", 1): 1.0}}
    jobs = [Job("x", 0.0, 1, 1000.0, "b"), Job("y", 0.0, 1, 1000.0, "a")]
    result = simulate(jobs, parse_pools("V100:1,K80:1"), registry.make("sia"), Table(alone, {}), costs.NONE)
    first = {each.job.id: each.segments[0].devices[0].split(":")[0] for each in result.jobs}
    assert first == {"x": "K80", "y": "V100"}


def test_goodput_decides_over_several_types_and_sizes_only_double() -> None:
    steps = applications()["pollux/bert"].steps_at(48)
    jobs = [Job(str(n), 0.0, 16, steps, "pollux/bert", virtual_nodes=48) for n in range(2)]
    pools = parse_pools("T4:4+4,A100:8")
    result = simulate(jobs, pools, registry.make("sia"), beside(Profiled()), costs.NONE)
    for each in result.jobs:
        sizes = [len(segment.devices) for segment in each.segments]
        assert sizes[0] == 1
        assert all(after <= 2 * max(sizes[: place + 1]) for place, after in enumerate(sizes[1:]))
        assert all(segment.start_seconds % 60 == 0 for segment in each.segments)
    assert {device.split(":")[0] for each in result.jobs for s in each.segments for device in s.devices} >= {"A100"}
    assert not math.isnan(result.accounts.total)


def test_no_live_manager_takes_it() -> None:
    with pytest.raises(ConfigError, match=r"changes the batch size of running jobs.*Use las-mixed"):
        registry.make_live("sia")
