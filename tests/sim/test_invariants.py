"""What holds for every trace, under hypothesis: checked at each decision of a policy, and at the end of each run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualflow.cluster.job import Job, ScheduledJob
from virtualflow.cluster.policies import registry
from virtualflow.cluster.policies.base import Decision, Options, Policy
from virtualflow.cluster.snapshot import Snapshot
from virtualflow.cluster.throughput.model import Profiled
from virtualflow.core.devices import Pool, parse_pools
from virtualflow.sim import costs
from virtualflow.sim.engine import simulate
from virtualflow.sim.failures import Failures
from virtualflow.sim.result import Run

ELASTIC = ("wfs", "sjf", "srtf")
STATIC = ("priority", "fifo")
Check = Callable[[Snapshot, dict[str, int], dict[str, int]], None]


class Watched(Policy):
    """Another policy, each of whose decisions is checked."""

    name = "watched"

    def __init__(self, inner: Policy, check: Check) -> None:
        super().__init__()
        self.inner, self.check = inner, check
        self.round_seconds, self.needs_progress, self.restarts = (
            inner.round_seconds,
            inner.needs_progress,
            inner.restarts,
        )

    def order(self, state: ScheduledJob, snapshot: Snapshot) -> tuple[Any, ...]:
        return self.inner.order(state, snapshot)

    def forget(self, before: Job) -> None:
        self.inner.forget(before)

    def allocate(self, snapshot: Snapshot) -> Decision:
        before = {state.id: state.allocation for state in snapshot.jobs()}
        decision = self.inner.allocate(snapshot)
        after = before | {name: sum(grant.counts.values()) for name, grant in decision.grants.items()}
        assert sum(after.values()) <= snapshot.devices
        self.check(snapshot, before, after)
        return decision


@st.composite
def traces(draw: st.DrawFn) -> tuple[tuple[Job, ...], tuple[Pool, ...]]:
    devices = draw(st.sampled_from(["V100:1", "V100:4", "V100:4+4", "V100:2,P100:3"]))
    jobs = []
    for number in range(draw(st.integers(1, 12))):
        demand = draw(st.integers(1, 9))
        jobs.append(
            Job(
                str(number),
                draw(st.integers(0, 30)) * 10.0,
                demand,
                draw(st.integers(1, 200)) * 1.0,
                priority=draw(st.sampled_from([1.0, 5.0, 10.0])),
                virtual_nodes=demand * draw(st.integers(1, 3)),
            )
        )
    return tuple(jobs), parse_pools(devices)


failing = st.builds(
    Failures, st.sampled_from([0.0, 5.0]), st.sampled_from([0.0, 3.0]), st.just(120.0), st.integers(0, 5)
)


def nothing(snapshot: Snapshot, before: dict[str, int], after: dict[str, int]) -> None: ...


def run(
    trace: tuple[tuple[Job, ...], tuple[Pool, ...]],
    name: str,
    check: Check = nothing,
    failures: Failures = Failures(),  # noqa: B008, frozen
    options: Options = Options(),  # noqa: B008, frozen
) -> Run:
    jobs, pools = trace
    policy = Watched(registry.make(name, options), check)
    events = failures.events(pools, min(job.arrival_seconds for job in jobs))
    return simulate(jobs, pools, policy, Profiled(), costs.PAPER, failures=events)


@pytest.mark.parametrize("name", [*ELASTIC, *STATIC])
@settings(max_examples=40, deadline=None)
@given(trace=traces(), failures=failing)
def test_all_jobs_end_and_the_same_seed_gives_the_same_result(
    name: str, trace: tuple[tuple[Job, ...], tuple[Pool, ...]], failures: Failures
) -> None:
    first, second = run(trace, name, failures=failures), run(trace, name, failures=failures)
    assert first == second
    assert {job.job.id for job in first.jobs} == {job.id for job in trace[0]}
    for job in first.jobs:
        assert job.job.arrival_seconds <= job.start_seconds < job.end_seconds
        # Nothing is done twice or left out: no job is faster than the devices it had allow.
        assert sum((each.end_seconds - each.start_seconds) * len(each.devices) for each in job.segments) >= (
            job.job.steps * job.job.demand * (1 - 1e-9)
        )


@pytest.mark.parametrize("name", ELASTIC)
@settings(max_examples=40, deadline=None)
@given(trace=traces(), failures=failing)
def test_no_device_is_idle_while_a_job_could_use_it(
    name: str, trace: tuple[tuple[Job, ...], tuple[Pool, ...]], failures: Failures
) -> None:
    def check(snapshot: Snapshot, before: dict[str, int], after: dict[str, int]) -> None:
        wanted = sum(state.job.demand for state in snapshot.jobs())
        assert sum(after.values()) == min(wanted, snapshot.devices)

    run(trace, name, check, failures)


def assert_nobody_shrinks_for_a_lower_priority(
    policy: Policy, snapshot: Snapshot, before: dict[str, int], after: dict[str, int]
) -> None:
    """In one decision of *policy*: how many devices each job had, and has after it."""
    weights = {state.id: policy.weight(state, snapshot) for state in snapshot.jobs()}  # type: ignore[attr-defined]
    losers = [name for name in before if after[name] < before[name]]
    growing = [name for name in before if after[name] > before[name] > 0]
    admitted = [name for name in before if after[name] > before[name] == 0]
    if len(admitted) == 1:  # of several, a lower one may come in beside a higher one for which others shrank
        growing += admitted
    assert all(weights[winner] >= weights[loser] for winner in growing for loser in losers)


@pytest.mark.parametrize("name", ELASTIC)
@settings(max_examples=40, deadline=None)
@given(trace=traces(), failures=failing)
def test_nobody_shrinks_while_a_lower_priority_grows(
    name: str, trace: tuple[tuple[Job, ...], tuple[Pool, ...]], failures: Failures
) -> None:
    policy = registry.make(name)

    def check(snapshot: Snapshot, before: dict[str, int], after: dict[str, int]) -> None:
        assert_nobody_shrinks_for_a_lower_priority(policy, snapshot, before, after)
        assert all(after[name] >= 1 for name in before if before[name])

    run(trace, name, check, failures)


@pytest.mark.parametrize("name", STATIC)
@settings(max_examples=40, deadline=None)
@given(trace=traces())
def test_static_policies_keep_their_order_and_never_resize(
    name: str, trace: tuple[tuple[Job, ...], tuple[Pool, ...]]
) -> None:
    def check(snapshot: Snapshot, before: dict[str, int], after: dict[str, int]) -> None:
        assert all(after[name] == before[name] for name in snapshot.running)
        started = [after[state.id] > 0 for state in snapshot.queue]
        assert started == sorted(started, reverse=True)  # whoever is first blocks the others
        if not all(started):
            first = list(snapshot.queue)[started.index(False)]
            assert min(first.job.demand, snapshot.devices) > snapshot.devices - sum(after.values())

    result = run(trace, name, check)
    assert all(job.resizes == 0 for job in result.jobs)


@pytest.mark.parametrize("name", STATIC)
@settings(max_examples=40, deadline=None)
@given(trace=traces())
def test_backfill_ends_and_resizes_nobody(name: str, trace: tuple[tuple[Job, ...], tuple[Pool, ...]]) -> None:
    result = run(trace, name, options=Options(backfill=True))
    assert {job.job.id for job in result.jobs} == {job.id for job in trace[0]}
    assert all(job.resizes == 0 for job in result.jobs)


@pytest.mark.parametrize("name", [*ELASTIC, *STATIC])
@settings(max_examples=20, deadline=None)
@given(trace=traces(), backfill=st.booleans(), chosen=st.data())
def test_jobs_that_cannot_use_every_type_end_too(
    name: str, trace: tuple[tuple[Job, ...], tuple[Pool, ...]], backfill: bool, chosen: st.DataObject
) -> None:
    picky = tuple(
        replace(job, workload="resnet50", node_size=256) if chosen.draw(st.booleans()) else job for job in trace[0]
    )  # too large for a K80
    result = run((picky, parse_pools("K80:3,V100:2")), name, options=Options(backfill=backfill))
    assert len(result.jobs) == len(picky)
    for job in result.jobs:
        if job.job.workload == "resnet50":
            assert all(device.startswith("V100") for each in job.segments for device in each.devices)


@settings(max_examples=40, deadline=None)
@given(trace=traces(), failures=failing)
def test_powers_of_two_end_too(trace: tuple[tuple[Job, ...], tuple[Pool, ...]], failures: Failures) -> None:
    result = run(trace, "wfs", failures=failures, options=Options(round="pow2"))
    assert len(result.jobs) == len(trace[0])


def test_the_same_bits_in_another_process() -> None:
    """Whatever order sets of names have there."""
    program = """
from tests.sim.test_invariants import run
from virtualflow.core.devices import parse_pools
from virtualflow.sim.failures import Failures
from virtualflow.sim.generate import Recipe, generate
trace = generate(Recipe(12, "30/h", seed=2)).jobs, parse_pools("V100:4+4")
for name in ("wfs", "srtf", "priority"):
    print(repr(run(trace, name, failures=Failures(0.5, 0.2, 600.0, 1))))
"""
    root = Path(__file__).parents[2]
    result = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(result) == 1
    assert result != {b""}
