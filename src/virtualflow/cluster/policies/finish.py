"""Gavel's policies that look at how much is left to do: finish-time fairness, and the makespan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from virtualflow.cluster.linear_programs import Floats, min_makespan, min_max_ratio
from virtualflow.cluster.policies.gavel import Entry, Gavel
from virtualflow.cluster.snapshot import Snapshot

AS_GOOD_AS_DONE = 1e-6  # of a job's steps: with less left, ratios would be those of rounding


class _Finish(Gavel):
    needs_progress = True

    def work(self, entries: Sequence[Entry]) -> Floats:
        return np.array([max(entry.state.steps_left, AS_GOOD_AS_DONE * entry.state.job.steps) for entry in entries])


class Makespan(_Finish):
    """Minimises the time until all present jobs have ended."""

    name = "makespan"

    def shares(self, entries: Sequence[Entry], snapshot: Snapshot) -> Floats:
        return min_makespan(self.program(entries, snapshot), self.work(entries)).shares


class FinishTimeFairness(_Finish):
    """No job takes much longer than it would on an n-th of the cluster of its own (the measure is Themis's)."""

    name = "ftf"

    def shares(self, entries: Sequence[Entry], snapshot: Snapshot) -> Floats:
        program, work = self.program(entries, snapshot), self.work(entries)
        elapsed = np.array([max(0.0, snapshot.now - entry.state.job.arrival_seconds) for entry in entries])
        isolated = np.array([isolated_speed(entry, len(entries), snapshot) for entry in entries])
        return min_max_ratio(program, elapsed, work, elapsed + work / isolated).shares


def isolated_speed(entry: Entry, jobs: int, snapshot: Snapshot) -> float:
    """Its speed on 1/*jobs* of the devices of each type, one type at a time."""
    shares = [
        snapshot.capacity[name] / (jobs * column.devices) if column.devices and column.steps_per_second else 0.0
        for column in entry.columns
        for name in column.counts
    ]
    most = max(1.0, sum(shares))
    return sum(column.steps_per_second * share / most for column, share in zip(entry.columns, shares, strict=True))
