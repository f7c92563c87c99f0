"""Static priority, the paper's baseline: full demand or nothing, never resized, and who is first in line blocks."""

from __future__ import annotations

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
        grants: dict[str, Grant] = {}
        idle = snapshot.idle
        waiting = iter(snapshot.queue)
        for state in waiting:
            demand = min(state.job.demand, snapshot.devices)  # more than there are: as many as there are
            if demand > idle or not demand:
                if self.options.backfill and idle:
                    self._backfill(snapshot, state, waiting, grants, idle)
                break
            grants[state.id] = Grant.of(demand)
            idle -= demand
        return Decision(grants)

    def _backfill(self, snapshot: Snapshot, first: JobState, waiting: Any, grants: dict[str, Grant], idle: int) -> None:
        """Start jobs that end before *first* could begin, or that leave enough devices for it even so (EASY)."""
        begin, spare = self._reservation(snapshot, first, grants, idle)
        for state in waiting:
            demand = state.job.demand
            ends_in_time = snapshot.now + snapshot.seconds_left(state) <= begin
            if demand <= idle and (ends_in_time or demand <= spare):
                grants[state.id] = Grant.of(demand)
                idle -= demand
                if not ends_in_time:
                    spare -= demand
            if not idle:
                break

    def _reservation(
        self, snapshot: Snapshot, first: JobState, grants: dict[str, Grant], idle: int
    ) -> tuple[float, int]:
        """When enough devices will be free for *first*, and how many more than it needs."""
        ends = [(snapshot.now + snapshot.seconds_left(state), state.allocation) for state in snapshot.running.values()]
        ends += [
            (snapshot.now + snapshot.seconds_left(state), state.job.demand)
            for state in snapshot.queue
            if state.id in grants
        ]
        needed = min(first.job.demand, snapshot.devices)
        for seconds, devices in sorted(ends):
            idle += devices
            if idle >= needed:
                return seconds, idle - needed
        return snapshot.now, 0
