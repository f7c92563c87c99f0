"""Static priority, the paper's baseline: full demand or nothing, and who is first in line blocks.

Jobs are never resized for each other's sake. Only one that has lost devices, or whose owner wants more for it again,
gets what it lacks, before those that wait, once all of that is free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from virtualflow.cluster.job import ScheduledJob
from virtualflow.cluster.policies.base import Decision, Grant, Options, Policy
from virtualflow.cluster.snapshot import Snapshot
from virtualflow.cluster.users import Sharing


class Priority(Policy):
    """Jobs in descending priority. With backfill, jobs further back run where they do not delay the first one."""

    name = "priority"
    sharing = Sharing.TURNS

    def __init__(self, options: Options = Options()) -> None:  # noqa: B008, frozen
        super().__init__(options)
        self.needs_progress = options.backfill

    def order(self, state: ScheduledJob, snapshot: Snapshot) -> tuple[Any, ...]:
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
        first: ScheduledJob,
        waiting: Iterator[ScheduledJob],
        grants: dict[str, Grant],
        free: dict[str, int],
    ) -> None:
        """Start jobs that end before *first* could begin, or that leave enough devices for it even so (EASY)."""
        promise = self._promise(snapshot, first, grants, free)
        for state in waiting:
            if not any(free.values()):
                break
            counts = self._passing(snapshot, state, promise, free)
            if counts is not None:
                grants[state.id] = Grant(counts)

    def _passing(
        self, snapshot: Snapshot, state: ScheduledJob, promise: Promise, free: dict[str, int]
    ) -> dict[str, int] | None:
        """What a job may take out of *free*, if it may pass."""
        left = dict(free)
        counts = snapshot.fill(state.job, state.job.demand, left)
        if counts is not None and snapshot.end_seconds(state, counts) > promise.seconds:
            left = promise.spared(free)
            counts = snapshot.fill(state.job, state.job.demand, left)
            promise.spare -= sum(count for name, count in (counts or {}).items() if name in promise.types)
        for name, count in (counts or {}).items():
            free[name] -= count
        return counts

    def _promise(
        self, snapshot: Snapshot, first: ScheduledJob, grants: dict[str, Grant], free: dict[str, int]
    ) -> Promise:
        """When enough devices that *first* can use will be free, on what running jobs really have."""
        types = snapshot.types_for(first.job)
        needed = min(first.job.demand, sum(snapshot.capacity[name] for name in types))
        has = {state.id: state.counts for state in snapshot.running.values()}
        has |= {job_id: grant.counts for job_id, grant in grants.items()}
        ends = sorted(
            (snapshot.end_seconds(state, has[state.id]), sum(has[state.id].get(name, 0) for name in types))
            for state in snapshot.jobs()
            if state.id in has
        )
        idle = sum(free[name] for name in types)
        for seconds, devices in ends:
            idle += devices
            if idle >= needed:
                return Promise(seconds, frozenset(types), idle - needed)
        return Promise(snapshot.now, frozenset(types), 0)


@dataclass(slots=True)
class Promise:
    """To the first in line: it begins at that time, and does not need *spare* of the devices that it could use then."""

    seconds: float
    types: frozenset[str]
    spare: int

    def spared(self, free: Mapping[str, int]) -> dict[str, int]:
        """What others may have of *free* for as long as they like."""
        left, allowed = self.spare, dict(free)
        for name in allowed:
            if name in self.types:
                allowed[name] = min(left, allowed[name])
                left -= allowed[name]
        return allowed
