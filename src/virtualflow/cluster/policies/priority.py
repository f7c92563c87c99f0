"""Static priority, the paper's baseline: full demand or nothing, and who is first in line blocks.

Jobs are never resized for each other's sake. Only one that has lost devices, or whose owner wants more for it again,
gets what it lacks, before those that wait, once all of that is free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from virtualflow.cluster.job import JobState
from virtualflow.cluster.policies.base import Decision, Grant, Options, Policy
from virtualflow.cluster.snapshot import Snapshot


class Priority(Policy):
    """Jobs in descending priority. With backfill, jobs further back run where they do not delay the first one."""

    name = "priority"

    def __init__(self, options: Options = Options()) -> None:  # noqa: B008, frozen
        super().__init__(options)
        self.needs_progress = options.backfill

    def order(self, state: JobState, snapshot: Snapshot) -> tuple[Any, ...]:
        return (-state.job.priority, state.job.arrival_seconds)

    def allocate(self, snapshot: Snapshot) -> Decision:
        free = dict(snapshot.free)
        grants = self._completed(snapshot, free) if snapshot.lacking and snapshot.idle else {}
        waiting = iter(snapshot.queue)
        for state in waiting:
            if not snapshot.within_reach(state.job):
                continue  # its turn comes when devices are back
            counts = snapshot.fill(state.job, state.job.demand, free)
            if counts is None:
                if self.options.backfill:
                    self._backfill(snapshot, state, waiting, grants, free)
                break
            grants[state.id] = Grant(counts)
        return Decision(grants)

    def _completed(self, snapshot: Snapshot, free: dict[str, int]) -> dict[str, Grant]:
        """The full demand for running jobs that have less, as far as *free* goes, which is taken from."""
        grants: dict[str, Grant] = {}
        for state in snapshot.running.values():
            more = snapshot.fill(state.job, state.job.demand, free, have=state.allocation)
            if more is not None:
                grants[state.id] = Grant(Counter(state.counts) + Counter(more))
        return grants

    def _backfill(
        self,
        snapshot: Snapshot,
        first: JobState,
        waiting: Iterator[JobState],
        grants: dict[str, Grant],
        free: dict[str, int],
    ) -> None:
        """Start jobs that end before *first* could begin, or that leave enough devices for it even so (EASY)."""
        begin, spare = self._reservation(snapshot, first, grants, sum(free.values()))
        for state in waiting:
            if not any(free.values()):
                break
            in_time = snapshot.now + snapshot.seconds_left(state) <= begin
            if not in_time and state.job.demand > spare:
                continue
            counts = snapshot.fill(state.job, state.job.demand, free)
            if counts is not None:
                grants[state.id] = Grant(counts)
                spare -= 0 if in_time else state.job.demand

    def _reservation(
        self, snapshot: Snapshot, first: JobState, grants: dict[str, Grant], idle: int
    ) -> tuple[float, int]:
        """When enough devices will be free for *first*, and how many more than it needs. Types are not told apart."""
        had = {state.id: state.allocation for state in snapshot.running.values()}
        has = had | {job_id: sum(grant.counts.values()) for job_id, grant in grants.items()}
        ends = [
            (snapshot.now + snapshot.seconds_left(state), has[state.id]) for state in snapshot.jobs() if state.id in has
        ]
        needed = min(first.job.demand, snapshot.devices)
        for seconds, devices in sorted(ends):
            idle += devices
            if idle >= needed:
                return seconds, idle - needed
        return snapshot.now, 0
