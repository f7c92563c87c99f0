"""What Pollux and Sia remember of jobs: how often each was restarted, and the most devices that it ever had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from virtualflow.cluster.job import Job, ScheduledJob
from virtualflow.cluster.policies.base import NOTHING, Decision, Grant
from virtualflow.cluster.snapshot import Snapshot

RESTART_SECONDS = 30.0


class RestartHistory:
    """Of every job that is there."""

    def __init__(self) -> None:
        self._most: Counter[str] = Counter()
        self._restarts: Counter[str] = Counter()

    def forget_others(self, names: Collection[str]) -> None:
        """Only jobs of these *names* are there."""
        for kept in (self._most, self._restarts):
            for name in [name for name in kept if name not in names]:
                del kept[name]

    def limit(self, job: Job) -> int:
        """The most devices that it may have now: twice what it ever had."""
        return min(job.demand, max(job.min, 1, 2 * self._most[job.id]))

    def kept_part(self, state: ScheduledJob, now: float) -> float:
        """How much another allocation counts: the less, the more of its life the job has spent on restarts."""
        age = max(0.0, now - state.job.arrival_seconds)
        return max(0.0, age - self._restarts[state.id] * RESTART_SECONDS) / (age + RESTART_SECONDS)

    def decision(self, chosen: Iterable[tuple[ScheduledJob, str, int]], snapshot: Snapshot) -> Decision:
        """Give each of the *chosen* jobs its number of devices of a type, and the others none."""
        grants = dict.fromkeys(snapshot.running, NOTHING)
        changed: list[tuple[str, Grant]] = []
        for state, kind, count in chosen:
            grants.pop(state.id, None)
            if state.counts != {kind: count}:
                changed.append((state.id, Grant({kind: count})))
                self._restarts[state.id] += state.started_seconds is not None
            self._most[state.id] = max(self._most[state.id], count)
        changed.sort(key=lambda change: -sum(change[1].counts.values()))  # large jobs find whole machines
        return Decision(grants | dict(changed))
