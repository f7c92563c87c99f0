"""What holds on any trace for each of Gavel's family, and for the policies of other papers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualflow.cluster.job import Job
from virtualflow.cluster.policies import registry
from virtualflow.cluster.policies.base import Options
from virtualflow.cluster.throughput.table import Table
from virtualflow.core.devices import parse_pools
from virtualflow.sim import costs
from virtualflow.sim.costs import Costs
from virtualflow.sim.engine import simulate
from virtualflow.sim.failures import Failures
from virtualflow.sim.result import Run

GAVEL = ("las", "las-agnostic", "las-mixed", "las-mixed-columns", "water-filling", "ftf", "makespan")
OTHERS = ("tiresias", "optimus", "themis", "pollux", "sia", "easyscale")
PLAIN = ("wfs", "sjf", "srtf", "priority", "fifo")
EVERY = [*((name, None) for name in (*PLAIN, *GAVEL, *OTHERS)), ("las", "gavel"), ("ftf", "gavel")]
TABLE = Table(
    {
        "v100": {("a", 1): 4.0, ("a", 2): 7.0, ("a", 4): 12.0, ("b", 1): 2.0, ("b", 2): 3.0, ("b", 4): 5.0},
        "k80": {("a", 1): 1.0, ("a", 2): 1.5, ("a", 4): 2.0, ("b", 1): 1.5, ("b", 2): 2.5, ("b", 4): 4.5},
    },
    {},
)


@st.composite
def jobs(draw: st.DrawFn) -> list[Job]:
    seconds, result = 0.0, []
    for number in range(draw(st.integers(1, 6))):
        seconds += draw(st.sampled_from((0.0, 50.0, 360.0, 1000.0)))
        steps, workload = draw(st.sampled_from((30.0, 900.0, 5000.0))), draw(st.sampled_from("ab"))
        demand, priority = draw(st.sampled_from((1, 2, 4))), draw(st.sampled_from((1.0, 5.0)))
        result.append(Job(str(number), seconds, demand, steps, workload, priority=priority))
    return result


def run(
    name: str, compat: str | None, trace: list[Job], table: Table = TABLE, price: Costs = costs.NONE, rate: float = 0.0
) -> Run:
    """With *rate* failures an hour of each device."""
    pools = parse_pools("V100:2,K80:4")
    events = Failures(rate, 0.0, 120.0, 0).events(pools, 0.0)
    return simulate(trace, pools, registry.make(name, Options(compat=compat)), table, price, failures=events)


@pytest.mark.parametrize(("name", "compat"), EVERY)
@settings(max_examples=8, deadline=None)
@given(trace=jobs(), rate=st.sampled_from((0.0, 5.0)))
def test_all_work_is_done_on_devices_that_exist_and_twice_the_same(
    name: str, compat: str | None, trace: list[Job], rate: float
) -> None:
    result, again = (run(name, compat, trace, rate=rate) for _ in range(2))
    assert result.jobs == again.jobs
    assert {each.job.id for each in result.jobs} == {job.id for job in trace}
    starts = sorted({s.start_seconds for each in result.jobs for s in each.segments})
    for now in starts:
        used = [
            device
            for each in result.jobs
            for segment in each.segments
            if segment.start_seconds <= now < segment.end_seconds
            for device in segment.devices
        ]
        assert len(used) == len(set(used)) <= 6
    for each in result.jobs:
        speeds = (
            TABLE.speed(each.job, parse_pools(_counted(segment.devices))).steps_per_second
            * (segment.end_seconds - segment.start_seconds)
            for segment in each.segments
        )
        assert sum(speeds) == pytest.approx(each.job.steps, rel=1e-6)


@pytest.mark.parametrize("name", GAVEL)
@settings(max_examples=5, deadline=None)
@given(trace=jobs())
def test_rounds_are_respected(name: str, trace: list[Job]) -> None:
    for each in run(name, None, trace).jobs:
        for segment in each.segments:
            assert segment.start_seconds % 360 == 0
            assert segment.end_seconds % 360 == 0 or segment.end_seconds == each.end_seconds


@pytest.mark.parametrize("name", [*OTHERS, "gandiva", "antman"])
@settings(max_examples=8, deadline=None)
@given(trace=jobs(), rate=st.sampled_from((0.0, 5.0)))
def test_work_goes_on_through_failures_and_whatever_it_costs(name: str, trace: list[Job], rate: float) -> None:
    pools = parse_pools("V100:2,K80:4")
    events = Failures(rate, 0.0, 120.0, 0).events(pools, 0.0)
    result = simulate(trace, pools, registry.make(name), SHARED, costs.PAPER, failures=events)
    assert {each.job.id for each in result.jobs} == {job.id for job in trace}


SHARED = Table(
    TABLE.alone,
    {
        kind: {
            (("a", 1), ("a", 1)): 0.7 * speeds["a", 1],
            (("a", 1), ("b", 1)): 0.4 * speeds["a", 1],
            (("b", 1), ("a", 1)): 0.5 * speeds["b", 1],
            (("b", 1), ("b", 1)): 0.0,
        }
        for kind, speeds in TABLE.alone.items()
    },
)


@settings(max_examples=25, deadline=None)
@given(trace=jobs(), rate=st.sampled_from((0.0, 5.0)))
def test_gandiva_does_all_work_with_at_most_two_jobs_on_a_device(trace: list[Job], rate: float) -> None:
    """What each job does between any two changes, at what is left of its speed there, adds up to its steps."""
    result = run("gandiva", None, trace, SHARED, rate=rate)
    assert result.jobs == run("gandiva", None, trace, SHARED, rate=rate).jobs
    times = sorted({t for each in result.jobs for s in each.segments for t in (s.start_seconds, s.end_seconds)})
    done = dict.fromkeys((job.id for job in trace), 0.0)
    for start, end in itertools.pairwise(times):
        there = [
            (each.job, segment.devices)
            for each in result.jobs
            for segment in each.segments
            if segment.start_seconds <= start < segment.end_seconds
        ]
        for job, devices in there:
            beside = [other for other, others in there if other is not job and not set(devices).isdisjoint(others)]
            assert len(beside) <= 1
            kind = devices[0].split(":")[0]
            speed = SHARED.speed(job, parse_pools(_counted(devices))).steps_per_second
            done[job.id] += (end - start) * speed * SHARED.slowdown(job, beside, kind)
    for job in trace:
        assert done[job.id] == pytest.approx(job.steps, rel=1e-6)


def _counted(devices: tuple[str, ...]) -> str:
    kinds = [name.split(":")[0] for name in devices]
    return ",".join(f"{kind}:{kinds.count(kind)}" for kind in dict.fromkeys(kinds))
