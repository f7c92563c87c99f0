"""Jobs that pass the first in line do not delay it: with boots, on slow types, and where types can't be exchanged."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.test_invariants import Watched
from virtualflow.cluster.job import Job
from virtualflow.cluster.policies import registry
from virtualflow.cluster.policies.base import Options
from virtualflow.cluster.snapshot import Snapshot
from virtualflow.cluster.throughput.table import Table
from virtualflow.core.devices import parse_pools
from virtualflow.sim import costs
from virtualflow.sim.costs import Costs
from virtualflow.sim.engine import simulate
from virtualflow.sim.result import JobResult, Run

BOOT = Costs("boot", boot=30.0, resume=30.0)
TABLE = Table(  # V100s are four times as fast; "narrow" runs on nothing else
    {
        "v100": {(name, count): 4.0 * count for name in ("wide", "narrow") for count in (1, 2, 4)},
        "k80": {("wide", count): 1.0 * count for count in (1, 2, 4)} | {("narrow", count): 0.0 for count in (1, 2, 4)},
    },
    {},
)


def run(jobs: list[Job], devices: str, check: Any = lambda *_: None, policy: str = "fifo", price: Costs = BOOT) -> Run:
    watched = Watched(registry.make(policy, Options(backfill=True)), check)
    return simulate(jobs, parse_pools(devices), watched, TABLE, price)


def starts(run: Run) -> dict[str, float]:
    return {each.job.id: each.start_seconds for each in run.jobs}


def test_a_job_that_would_be_through_but_for_its_boot_does_not_pass() -> None:
    jobs = [Job("runs", 0.0, 3, 100.0), Job("first", 1.0, 4, 100.0), Job("short", 2.0, 1, 100.0)]
    assert starts(run(jobs, "V100:4")) == {"runs": 0.0, "first": 130.0, "short": 260.0}
    jobs[2] = Job("short", 2.0, 1, 98.0)
    assert starts(run(jobs, "V100:4")) == {"runs": 0.0, "first": 130.0, "short": 2.0}


def test_a_job_is_judged_by_the_type_that_it_would_get() -> None:
    """40 steps take 10 s on the V100, which is taken, and 40 s on the K80."""
    jobs = [
        Job("runs", 0.0, 1, 80.0, "wide"),
        Job("first", 1.0, 2, 40.0, "wide"),
        Job("short", 2.0, 1, 40.0, "wide"),
    ]
    assert starts(run(jobs, "V100:1,K80:1", price=costs.NONE)) == {"runs": 0.0, "first": 20.0, "short": 20.0 + 10.0}


def test_a_long_job_may_take_only_types_that_the_first_in_line_has_no_use_for() -> None:
    jobs = [
        Job("runs", 0.0, 1, 400.0, "narrow"),
        Job("first", 1.0, 2, 400.0, "narrow"),
        Job("long", 2.0, 1, 4000.0, "wide"),
    ]
    result = run(jobs, "V100:2,K80:1", price=costs.NONE)
    assert starts(result) == {"runs": 0.0, "first": 100.0, "long": 2.0}
    (long,) = [each for each in result.jobs if each.job.id == "long"]
    assert long.segments[0].devices == ("K80:0",)


@st.composite
def traces(draw: st.DrawFn) -> list[Job]:
    result, seconds = [], 0.0
    for number in range(draw(st.integers(3, 10))):
        seconds += draw(st.sampled_from((0.0, 7.0, 40.0)))
        demand, steps = draw(st.sampled_from((1, 2, 4))), draw(st.sampled_from((20.0, 150.0, 700.0)))
        result.append(Job(str(number), seconds, demand, steps, draw(st.sampled_from(("wide", "wide", "narrow")))))
    return result


@pytest.mark.parametrize("policy", ["fifo", "priority"])
@settings(max_examples=150, deadline=None)
@given(trace=traces(), devices=st.sampled_from(("V100:4", "V100:2,K80:4", "K80:3,V100:4")))
def test_whoever_is_first_in_line_begins_when_those_that_ran_then_make_room(
    policy: str, trace: list[Job], devices: str
) -> None:
    """Its promise is worked out afterwards, from the times at which they really ended."""
    first: dict[str, tuple[set[str], int]] = {}  # job -> who had devices before it when it came to be first, its need

    def check(snapshot: Snapshot, before: dict[str, int], after: dict[str, int]) -> None:
        ahead = set(snapshot.running)
        for state in snapshot.queue:
            if not after[state.id]:
                types = snapshot.types_for(state.job)
                need = min(state.job.demand, sum(snapshot.capacity[name] for name in types))
                first.setdefault(state.id, (ahead, need))
                return
            ahead.add(state.id)

    result = run(trace, devices, check, policy)
    results = {each.job.id: each for each in result.jobs}
    pools = {pool.device_type: pool.count for pool in parse_pools(devices)}
    for name, (ahead, need) in first.items():
        types = {kind for kind in pools if TABLE.usable(results[name].job, kind)}
        room = sum(pools[kind] for kind in types)
        held = [(results[other].end_seconds, _of(types, results[other])) for other in ahead]
        room -= sum(count for _, count in held)
        promised = -1.0
        for seconds, count in sorted(held):
            if room >= need:
                break
            room, promised = room + count, seconds
        assert results[name].start_seconds <= promised + 1e-6


def _of(types: set[str], result: JobResult) -> int:
    """How many devices of these types it had."""
    return sum(device.split(":")[0] in types for device in result.segments[-1].devices)
