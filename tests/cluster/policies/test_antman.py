"""AntMan: guarantees, guests, and how far a guest may slow down its host."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualflow.cluster.job import Job
from virtualflow.cluster.policies import registry
from virtualflow.cluster.policies.antman import Antman, busy
from virtualflow.cluster.throughput.model import Profiled
from virtualflow.cluster.throughput.table import Table
from virtualflow.core.devices import parse_pools
from virtualflow.errors import ConfigError
from virtualflow.sim import costs
from virtualflow.sim.engine import simulate
from virtualflow.sim.result import JobResult


def table(ab: float = 0.5, **of_two_copies: float) -> Table:
    """One step a second alone; ``a=0.8``: what is left of each of two copies of a on one device; *ab*: of a and b."""
    shared = {((name, 1), (name, 1)): left for name, left in of_two_copies.items()}
    shared |= {(("a", 1), ("b", 1)): ab, (("b", 1), ("a", 1)): ab}
    return Table({"v100": {(name, count): 1.0 for name in "abc" for count in (1, 2)}}, {"v100": shared})


HALF_BUSY = table(a=1.0, b=0.5)  # a keeps its device busy for half of the time, b all of it


def run(jobs: list[Job], speeds: Table = HALF_BUSY, devices: str = "V100:1") -> dict[str, JobResult]:
    result = simulate(jobs, parse_pools(devices), registry.make("antman"), speeds, costs.NONE)
    return {each.job.id: each for each in result.jobs}


def spans(result: JobResult) -> list[tuple[float, float]]:
    return [(segment.start_seconds, segment.end_seconds) for segment in result.segments]


def job(workload: str, demand: int = 1) -> Job:
    return Job(workload, 0.0, demand, 100.0, workload)


def test_how_busy_a_job_keeps_its_device_comes_from_two_copies_on_one() -> None:
    speeds = table(a=0.8, b=0.25)
    assert busy(job("a"), "V100", speeds) == pytest.approx(0.625)
    assert busy(job("b"), "V100", speeds) == 1.0  # they lose more than turns would take
    assert busy(job("c"), "V100", speeds) == 1.0  # not measured: no gaps
    assert busy(job("a"), "V100", table(a=0.0)) == 1.0  # two do not fit


def test_a_guest_runs_in_the_gaps_and_takes_no_more_of_its_host_than_the_bound() -> None:
    def shared(host: str, guest: str, bound: float, ab: float = 0.5) -> tuple[float, float]:
        return Antman(bound=bound).shared_speeds(job(host), job(guest), "V100", table(ab, a=1.0, b=0.5))

    assert shared("a", "a", 0.0) == (1.0, 1.0)  # two halves of a device
    assert shared("a", "b", 0.0) == pytest.approx((1.0, 0.5))
    assert shared("a", "b", 0.05) == pytest.approx((0.95, 0.525))
    assert shared("a", "b", 0.05, ab=0.0) == pytest.approx((1.0, 0.2625))  # its memory gives way: half of that speed


@settings(max_examples=15, deadline=None)
@given(st.floats(0.3, 1.0), st.floats(0.3, 1.0), st.floats(0.0, 0.3))
def test_a_host_keeps_its_speed_up_to_the_bound_and_device_time_adds_up(a: float, b: float, bound: float) -> None:
    speeds = table(a=a, b=b)
    host, guest = Antman(bound=bound).shared_speeds(job("a"), job("b"), "V100", speeds)
    assert 1 - bound - 1e-9 <= host <= 1
    assert 0 <= guest <= 1
    assert host * busy(job("a"), "V100", speeds) + guest * busy(job("b"), "V100", speeds) <= 1 + 1e-9


def test_a_guest_takes_over_the_device_when_its_host_ends() -> None:
    result = run([Job("x", 0.0, 1, 95.0, "a"), Job("y", 0.0, 1, 100.0, "b")])
    assert result["x"].end_seconds == pytest.approx(100.0)  # at 0.95 of its speed
    assert result["y"].end_seconds == pytest.approx(100.0 + (100.0 - 52.5))
    assert spans(result["y"])[0] == (0.0, 100.0)


def test_a_device_that_is_busy_takes_no_guest() -> None:
    result = run([Job("x", 0.0, 1, 100.0, "b"), Job("y", 0.0, 1, 100.0, "a")])
    assert spans(result["y"]) == [(100.0, 200.0)]


def test_a_guest_goes_to_the_device_that_is_the_least_busy() -> None:
    speeds = table(a=0.7, c=0.9, b=0.5)
    jobs = [Job("x", 0.0, 1, 100.0, "a"), Job("y", 0.0, 1, 100.0, "c"), Job("z", 1.0, 1, 10.0, "b")]
    result = run(jobs, speeds, "V100:2")
    assert result["z"].segments[0].devices == result["y"].segments[0].devices


def test_one_guest_on_a_device() -> None:
    result = run([Job(name, 0.0, 1, 100.0, "a") for name in "xyz"])
    assert spans(result["x"]) == spans(result["y"]) == [(0.0, 100.0)]
    assert spans(result["z"]) == [(100.0, 200.0)]


def test_devices_that_are_kept_for_a_large_job_are_not_idle_and_it_is_not_delayed() -> None:
    """z runs on the second device until y, which came first, can have both; then it moves beside y."""
    jobs = [Job("x", 0.0, 1, 100.0, "a"), Job("y", 1.0, 2, 100.0, "a"), Job("z", 2.0, 1, 300.0, "a")]
    result = run(jobs, devices="V100:2")
    assert result["y"].start_seconds == 100.0
    assert result["y"].end_seconds == 200.0
    assert spans(result["z"])[:2] == [(2.0, 100.0), (100.0, 200.0)]
    assert result["z"].end_seconds == 302.0


def test_an_opportunistic_job_waits_where_a_guarantee_takes_its_devices_and_leaves_no_gaps() -> None:
    jobs = [Job("x", 0.0, 1, 100.0, "b"), Job("y", 1.0, 2, 100.0, "b"), Job("z", 2.0, 1, 300.0, "b")]
    result = run(jobs, devices="V100:2")
    assert spans(result["z"]) == [(2.0, 100.0), (200.0, 402.0)]


def test_who_has_a_guarantee_keeps_it_whoever_comes() -> None:
    jobs = [Job("x", 0.0, 1, 100.0, "b"), Job("y", 1.0, 1, 100.0, "b", priority=9.0)]
    assert spans(run(jobs)["x"]) == [(0.0, 100.0)]


def test_the_highest_priority_gets_the_next_guarantee() -> None:
    jobs = [Job("x", 0.0, 1, 100.0, "b"), Job("y", 1.0, 1, 100.0, "b"), Job("z", 2.0, 1, 100.0, "b", priority=9.0)]
    assert spans(run(jobs)["z"]) == [(100.0, 200.0)]


def test_without_measured_pairs_nothing_is_shared() -> None:
    trace = [Job(str(n), 0.0, 1, 100.0) for n in range(3)]
    result = simulate(trace, parse_pools("V100:1"), registry.make("antman"), Profiled(), costs.NONE)
    assert [each.end_seconds for each in result.jobs] == [100.0, 200.0, 300.0]


def test_no_live_manager_takes_it() -> None:
    with pytest.raises(ConfigError, match=r"--policy antman is for simulations .* Use gandiva"):
        registry.make_live("antman")
