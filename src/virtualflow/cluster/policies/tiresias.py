"""Tiresias-L (Gu et al., NSDI '19): discretised two-dimensional least attained service.

A job's attained service is its devices times its time on them. Jobs start in the first queue and move on to the next
one when their service passes its threshold; queues are served in order, each first come, first served, and whoever
fits runs on the full demand. So a job is interrupted only where a threshold is passed, not all the time. The paper's
placement by model is not part of this, nor is promotion of starving jobs, which its own simulator leaves off.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

from virtualflow.cluster.job import ScheduledJob
from virtualflow.cluster.policies.base import NOTHING, Decision, Grant, Options, Policy
from virtualflow.cluster.snapshot import Snapshot

THRESHOLDS = (3200.0,)  # device-seconds: two queues, as in the paper's testbed
ROUNDING = 1e-6  # device-seconds


class Tiresias(Policy):
    """Queues by attained service."""

    name = "tiresias"
    restarts = True

    def __init__(
        self,
        options: Options = Options(),  # noqa: B008, frozen
        *,
        thresholds: Sequence[float] = THRESHOLDS,
        quantum_seconds: float | None = None,
    ) -> None:
        """With *quantum_seconds*, queues are looked at only at multiples of it."""
        super().__init__(options)
        self._thresholds = sorted(thresholds)
        self.round_seconds = quantum_seconds

    def order(self, state: ScheduledJob, snapshot: Snapshot) -> tuple[Any, ...]:
        return (self._queue(state, snapshot.now), state.job.arrival_seconds)

    def allocate(self, snapshot: Snapshot) -> Decision:
        free = dict(snapshot.capacity)
        states = sorted(snapshot.jobs(), key=lambda state: self.order(state, snapshot))
        runs: dict[str, dict[str, int]] = {}
        for state in states:
            counts = self._devices(state, snapshot, free)
            if counts is not None:
                runs[state.id] = counts
        grants = {name: NOTHING for name in snapshot.running if name not in runs}
        for state in states:
            if state.id in runs and runs[state.id] != state.counts:
                grants[state.id] = Grant(runs[state.id])
        return Decision(grants, self._next_crossing(states, runs, snapshot.now))

    def _queue(self, state: ScheduledJob, now: float) -> int:
        return bisect.bisect_right(self._thresholds, state.attained(now) + ROUNDING)

    def _devices(self, state: ScheduledJob, snapshot: Snapshot, free: dict[str, int]) -> dict[str, int] | None:
        """Its demand out of what is free: where it is now if it can, else on the first type that has enough."""
        for name in sorted(free, key=lambda name: name not in state.counts):
            demand = min(state.job.demand, snapshot.capacity[name])
            if state.job.min <= demand <= free[name] and snapshot.throughput.usable(state.job, name):
                free[name] -= demand
                return {name: demand}
        return None

    def _next_crossing(
        self, states: Sequence[ScheduledJob], runs: dict[str, dict[str, int]], now: float
    ) -> float | None:
        """When the first of the running jobs moves on to another queue."""
        times = [
            now + (self._thresholds[queue] - state.attained(now)) / sum(runs[state.id].values())
            for state in states
            if state.id in runs and (queue := self._queue(state, now)) < len(self._thresholds)
        ]
        return min(times) if times and self.round_seconds is None else None
