"""What a manager has recorded, as a run: real clusters get the same figures and charts as simulated ones."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from virtualflow.cluster.job import Job
from virtualflow.core.job_state import JobState
from virtualflow.sim.execution import Spent
from virtualflow.sim.result import Accounts, JobResult, Run, Segment


def run_of(state: Mapping[str, Any], history: Mapping[str, Any]) -> Run:
    """From the answers of ``/api/state`` and ``/api/history``. Jobs go by their names; the first submit is second 0.

    Whether a device computed or waited is not recorded: all the time that a job had it counts as productive.
    """
    zero = min(job["submitted"] for job in state["jobs"])
    now = state["cluster"].get("now", time.time())
    ended = [_result(job, history["segments"], zero) for job in state["jobs"] if job["state"] == JobState.DONE]
    end = max((job["ended"] or now) for job in state["jobs"]) - zero
    accounts = Accounts(len(state["devices"]), 0.0, end)
    held = sum(
        len(segment.devices) * (segment.end_seconds - segment.start_seconds)
        for job in ended
        for segment in job.segments
    )
    accounts.free = max(0.0, accounts.total - held)
    accounts.spent = Spent(productive=held)
    in_order = sorted(ended, key=lambda job: job.end_seconds)
    return Run(state["cluster"]["policy"], tuple(in_order), accounts, len(history["segments"]))


def _result(job: Mapping[str, Any], history: Sequence[Mapping[str, Any]], zero: float) -> JobResult:
    start, end = job["started"] - zero, job["ended"] - zero
    segments = [
        Segment(segment["begin"] - zero, (segment["end"] or job["ended"]) - zero, tuple(segment["devices"]))
        for segment in history
        if segment["job"] == job["id"]
    ]
    if segments:  # its devices were its own from its launch on, before its first event
        segments[0] = Segment(start, segments[0].end_seconds, segments[0].devices)
    known = Job(
        job["name"],
        job["submitted"] - zero,
        job["demand"],
        float(job["steps"] or job["step"] or 1),
        virtual_nodes=max(job["virtual_nodes"] or 0, job["demand"]),
        priority=job["priority"],
    )
    return JobResult(known, start, end, job["resizes"], end - start, tuple(segments))
