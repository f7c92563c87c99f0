"""A simulation as the page shows it: the same state and history that a manager would serve, at the end of each run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

from virtualflow import __version__
from virtualflow.cluster.job import LINEAR
from virtualflow.core.cluster_view import AllocationView, ClusterView, DeviceView, history_of, state_of
from virtualflow.core.devices import Pool, names_of, type_of
from virtualflow.core.job_state import JobState
from virtualflow.core.job_view import JobView
from virtualflow.sim.compare import Comparison, PolicyResult
from virtualflow.sim.result import JobResult, Segment

MAX_JOBS = 5_000  # beyond, the file gets too large for a browser
MAX_NAMES = 300_000  # of devices, in all segments: beyond, only counts by type are kept


def of(comparison: Comparison, pools: Sequence[Pool], title: str) -> dict[str, Any]:
    """What ``page.standalone`` embeds."""
    devices = list(_devices(pools))
    return {
        "policies": {name: _policy(name, outcome, devices, title) for name, outcome in comparison.policies.items()},
    }


def _policy(name: str, outcome: PolicyResult, devices: list[DeviceView], title: str) -> dict[str, Any]:
    accounts = outcome.run.accounts
    jobs = sorted(outcome.run.jobs, key=lambda job: (job.job.arrival_seconds, job.job.id))[:MAX_JOBS]
    named = sum(len(segment.devices) for job in jobs for segment in job.segments) <= MAX_NAMES
    cluster = ClusterView(title, name, "simulation", accounts.start_seconds, accounts.end_seconds, __version__)
    left_out = len(outcome.run.jobs) - len(jobs)
    return {
        "state": state_of("report", cluster, map(_job, jobs), devices),
        "history": history_of(_allocation(job, segment, named) for job in jobs for segment in job.segments),
        "summary": {
            name: interval.mean if isfinite(interval.mean) else None for name, interval in outcome.intervals.items()
        },
        "half_widths": outcome.half_widths,  # of 95% intervals over seeds
        "note": f"The first {MAX_JOBS:,} jobs are shown; {left_out:,} more are left out." if left_out else "",
    }


def _name(result: JobResult) -> str:
    job = result.job
    return f"job {job.id}" if job.workload == LINEAR else f"{job.id} {job.workload}"


def _job(result: JobResult) -> JobView:
    job = result.job
    return JobView(
        id=job.id,
        name=_name(result),
        script="",
        state=JobState.DONE,
        devices=[],
        step=job.steps,
        steps=job.steps,
        loss=None,
        examples_per_second=None,
        eta_seconds=None,
        priority=job.priority,
        demand=job.demand,
        want=job.demand,
        min=job.min,
        cap=None,
        virtual_nodes=job.virtual_nodes,
        mapping={},
        queued_seconds=result.queueing_seconds,
        run_seconds=result.end_seconds - result.start_seconds,
        resizes=result.resizes,
        failures=0,
        reason="",
        submitted=job.arrival_seconds,
        started=result.start_seconds,
        ended=result.end_seconds,
    )


def _allocation(result: JobResult, segment: Segment, named: bool) -> AllocationView:
    view = AllocationView.of(result.job.id, _name(result), segment.devices, segment.start_seconds, segment.end_seconds)
    return view if named else replace(view, devices=[])


def _devices(pools: Sequence[Pool]) -> Iterator[DeviceView]:
    machines = (
        number for number, count in enumerate(count for pool in pools for count in pool.machines) for _ in range(count)
    )
    for name, machine in zip(names_of(pools), machines, strict=True):
        yield DeviceView(name, type_of(name), machine)
