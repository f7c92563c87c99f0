"""What holds for each of Gavel's family, and for Tiresias, on any trace."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualflow.cluster.job import Job
from virtualflow.cluster.policies import registry
from virtualflow.cluster.policies.base import Options
from virtualflow.cluster.table import Table
from virtualflow.core.devices import parse_pools
from virtualflow.sim import costs
from virtualflow.sim.engine import simulate
from virtualflow.sim.result import Run

GAVEL = ("las", "las-agnostic", "las-mixed", "las-mixed-columns", "water-filling", "ftf", "makespan")
EVERY = [*((name, None) for name in GAVEL), ("las", "gavel"), ("ftf", "gavel"), ("tiresias", None)]
TABLE = Table(
    {
        "v100": {("a", 1): 4.0, ("a", 2): 7.0, ("a", 4): 12.0, ("b", 1): 2.0, ("b", 2): 3.0, ("b", 4): 5.0},
        "k80": {("a", 1): 1.0, ("a", 2): 1.5, ("a", 4): 2.0, ("b", 1): 1.5, ("b", 2): 2.5, ("b", 4): 4.5},
    },
    {},
)


@st.composite
def jobs(draw: st.DrawFn) -> list[Job]:
    seconds, found = 0.0, []
    for number in range(draw(st.integers(1, 6))):
        seconds += draw(st.sampled_from((0.0, 50.0, 360.0, 1000.0)))
        steps, workload = draw(st.sampled_from((30.0, 900.0, 5000.0))), draw(st.sampled_from("ab"))
        demand, priority = draw(st.sampled_from((1, 2, 4))), draw(st.sampled_from((1.0, 5.0)))
        found.append(Job(str(number), seconds, demand, steps, workload, priority=priority))
    return found


def run(name: str, compat: str | None, trace: list[Job]) -> Run:
    return simulate(trace, parse_pools("V100:2,K80:4"), registry.make(name, Options(compat=compat)), TABLE, costs.NONE)


@pytest.mark.parametrize(("name", "compat"), EVERY)
@settings(max_examples=8, deadline=None)
@given(trace=jobs())
def test_all_work_is_done_on_devices_that_exist_and_twice_the_same(
    name: str, compat: str | None, trace: list[Job]
) -> None:
    found, again = run(name, compat, trace), run(name, compat, trace)
    assert found.jobs == again.jobs
    assert {each.job.id for each in found.jobs} == {job.id for job in trace}
    starts = sorted({s.start_seconds for each in found.jobs for s in each.segments})
    for now in starts:
        used = [
            device
            for each in found.jobs
            for segment in each.segments
            if segment.start_seconds <= now < segment.end_seconds
            for device in segment.devices
        ]
        assert len(used) == len(set(used)) <= 6
    for each in found.jobs:
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


def _counted(devices: tuple[str, ...]) -> str:
    kinds = [name.split(":")[0] for name in devices]
    return ",".join(f"{kind}:{kinds.count(kind)}" for kind in dict.fromkeys(kinds))
