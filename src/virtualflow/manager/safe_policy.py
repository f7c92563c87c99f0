"""A guard around a policy: if it fails, jobs keep their devices, and it is called again later."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from virtualflow.cluster.job import Job, ScheduledJob
from virtualflow.cluster.messages import DevicesJoined, DevicesLost, JobsRestored
from virtualflow.cluster.policies.base import ANY, Decision, Grant, Policy
from virtualflow.cluster.scheduler import Scheduler
from virtualflow.cluster.snapshot import Snapshot
from virtualflow.core.devices import Pool

RETRY_SECONDS = 30.0  # after a failure, until it is asked again even if nothing happens


class SafePolicy(Policy):
    """Asks *policy*. If that raises, *failed* is called with that, and the last allocation stands."""

    def __init__(self, policy: Policy, failed: Callable[[Exception], None], went_well: Callable[[], None]) -> None:
        super().__init__(policy.options)
        self._policy = policy
        self._failed = failed
        self._went_well = went_well
        self._has_failed = False
        self.__dict__["name"] = policy.name
        self.round_seconds, self.needs_progress = policy.round_seconds, policy.needs_progress
        self.restarts, self.sharing = policy.restarts, policy.sharing

    def order(self, state: ScheduledJob, snapshot: Snapshot) -> tuple[Any, ...]:
        try:
            return self._policy.order(state, snapshot)
        except Exception as error:
            self._note_failure(error)
            return (state.job.arrival_seconds,)

    def forget(self, before: Job) -> None:
        try:
            self._policy.forget(before)
        except Exception as error:
            self._note_failure(error)

    def allocate(self, snapshot: Snapshot) -> Decision:
        try:
            decision = self._policy.allocate(snapshot)
        except Exception as error:
            self._note_failure(error)
            decision = Decision()
        if not self._has_failed:
            self._went_well()
            return decision
        self._has_failed = False
        return replace(decision, wake_seconds=min(decision.wake_seconds or math.inf, snapshot.now + RETRY_SECONDS))

    def _note_failure(self, error: Exception) -> None:
        self._has_failed = True  # what it then decides does not make that good
        self._failed(error)


class _FixedGrants(Policy):
    """Puts jobs beside their hosts again, and else leaves everything as it is."""

    name = "seats"

    def __init__(self, seats: Mapping[str, Grant]) -> None:
        super().__init__()
        self._seats = seats

    def allocate(self, snapshot: Snapshot) -> Decision:
        return Decision(self._seats)


def made_anew(
    old: Scheduler,
    pools: Sequence[Pool],
    lost: Collection[str],
    now: float,
    jobs: Sequence[tuple[Job, tuple[str, ...], str | None]],
) -> Scheduler:
    """A scheduler in place of one that broke in the middle of a decision: each job has its devices, or its host's."""
    new = Scheduler(
        pools,
        _FixedGrants({}),
        old.throughput,
        start_seconds=old.start_seconds,
        memory=old.memory.sizes,
        users=old.users,
    )
    since: dict[int, list[str]] = {}  # machines that have come since the start
    for device in old.placement.devices:
        if not new.placement.knows(device):
            since.setdefault(old.placement.machine_of(device), []).append(device)
    for devices in since.values():
        new.handle(DevicesJoined(now, tuple(devices)))
    if lost:
        new.handle(DevicesLost(now, tuple(sorted(lost))))
    own = {job.id for job, has, host in jobs if has and host is None}
    seats = {job.id: Grant({ANY: len(has)}, host) for job, has, host in jobs if has and host in own}
    running = tuple((job, has) for job, has, _ in jobs if job.id in own)
    attained = {name: state.attained(now) for name, state in old.jobs.items()}
    new.policy = _FixedGrants(seats)
    new.handle(JobsRestored(now, running, tuple(job for job, _, _ in jobs if job.id not in own), attained))
    new.policy = old.policy
    for state in new.jobs.values():
        new.policy.forget(state.job)  # it still refers to the old scheduler's states, which no longer change
    return new
