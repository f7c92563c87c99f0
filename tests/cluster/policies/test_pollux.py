"""Pollux: the best sharing out found by trying all, its rules one by one, and that it changes what is trained."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualflow.cluster.job import Job
from virtualflow.cluster.policies import registry
from virtualflow.cluster.policies.pollux import shared_out
from virtualflow.cluster.throughput.model import Profiled
from virtualflow.core.devices import parse_pools
from virtualflow.errors import ConfigError
from virtualflow.sim import costs
from virtualflow.sim.engine import simulate
from virtualflow.sim.pollux_applications import applications, beside
from virtualflow.sim.result import JobResult

SPEEDS = beside(Profiled())


def run(jobs: list[Job], devices: str = "T4:4+4", name: str = "pollux") -> dict[str, JobResult]:
    result = simulate(jobs, parse_pools(devices), registry.make(name), SPEEDS, costs.NONE)
    return {each.job.id: each for each in result.jobs}


def cifar(name: str, seconds: float = 0.0, demand: int = 8, batch: int = 256) -> Job:
    steps = applications()["pollux/cifar10"].steps_at(batch)
    return Job(name, seconds, demand, steps, "pollux/cifar10", virtual_nodes=batch)


@settings(max_examples=20, deadline=None)
@given(
    costs=st.lists(st.lists(st.floats(0.01, 1000.0), min_size=1, max_size=5), min_size=1, max_size=4),
    devices=st.integers(0, 8),
)
def test_no_other_sharing_out_is_better(costs: list[list[float]], devices: int) -> None:
    counts = shared_out([np.array(each) for each in costs], devices)
    assert sum(counts) <= devices
    every = itertools.product(*(range(len(each)) for each in costs))
    best = min(
        math.fsum(each[count] for each, count in zip(costs, some, strict=True))
        for some in every
        if sum(some) <= devices
    )
    assert math.fsum(each[count] for each, count in zip(costs, counts, strict=True)) == pytest.approx(best)


def test_a_job_begins_with_one_device_and_at_most_doubles_each_minute() -> None:
    segments = run([cifar("x")])["x"].segments
    assert [len(each.devices) for each in segments] == [1, 2, 4, 8]
    assert all(each.start_seconds % 60 == 0 for each in segments)


def test_no_job_has_more_devices_than_its_demand_or_less_than_its_minimum() -> None:
    job = Job("x", 0.0, 6, 5000.0, "pollux/cifar10", virtual_nodes=256, min=3)
    assert {len(each.devices) for each in run([job])["x"].segments} <= {3, 4, 5, 6}


def test_equal_jobs_come_to_equal_shares_on_rounds_of_a_minute() -> None:
    result = run([cifar("x"), cifar("y")])
    sizes = {name: [len(each.devices) for each in result[name].segments if each.start_seconds < 600] for name in "xy"}
    assert sizes["x"][-1] == sizes["y"][-1] == 4
    assert all(each.start_seconds % 60 == 0 for job in result.values() for each in job.segments)


def test_who_has_restarted_much_of_its_life_stays_where_it_is() -> None:
    """Others that come every minute change nothing for a job whose share does not change by much."""
    jobs = [cifar("x"), *(cifar(str(n), 300.0 + 60.0 * n, demand=1, batch=128) for n in range(3))]
    assert run(jobs)["x"].resizes <= 8


def test_it_is_faster_because_it_changes_the_batch() -> None:
    """At its own batch of 128 examples the job can use four devices, at a larger one all eight."""
    alone = {name: run([cifar("x", batch=128)], name=name)["x"].jct_seconds for name in ("pollux", "wfs")}
    assert alone["pollux"] < 0.6 * alone["wfs"]
    assert registry.make("pollux").changes_batch
    assert not registry.make("wfs").changes_batch


def test_where_nothing_is_known_of_batch_sizes_the_work_stays_the_same() -> None:
    (job,) = run([Job("x", 0.0, 4, 100.0)]).values()
    done = sum((each.end_seconds - each.start_seconds) * len(each.devices) / 4 for each in job.segments)
    assert done == pytest.approx(100.0)


def test_no_live_manager_takes_it() -> None:
    with pytest.raises(ConfigError, match=r"changes the batch size of running jobs.*Use wfs --useful"):
        registry.make_live("pollux")
