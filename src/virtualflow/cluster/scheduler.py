"""The brain: one method, no clock, no I/O. A simulator drives it in virtual time, a manager on the wall clock."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from virtualflow.cluster.assignment import Assignment
from virtualflow.cluster.holding import DeviceMemory, HeldThroughput
from virtualflow.cluster.job import Job, ScheduledJob
from virtualflow.cluster.messages import (
    Action,
    DevicesJoined,
    DevicesLost,
    Event,
    JobArrived,
    JobChanged,
    JobEnded,
    JobsRestored,
    ProgressReported,
    SuspendJob,
    WakeAt,
    Woken,
)
from virtualflow.cluster.placement import Placement
from virtualflow.cluster.policies.base import ANY, NOTHING, Grant, Policy
from virtualflow.cluster.snapshot import Snapshot
from virtualflow.cluster.throughput.model import Throughput
from virtualflow.cluster.users import Asking, Limit, Sharing, Users
from virtualflow.cluster.waiting import Queue
from virtualflow.core.devices import Pool
from virtualflow.errors import ConfigError, PolicyError

NO_LIMITS: Mapping[str, int] = MappingProxyType({})


class Scheduler:
    """Keeps jobs, devices and the queue, and asks its policy what should change."""

    def __init__(
        self,
        pools: Sequence[Pool],
        policy: Policy,
        throughput: Throughput,
        *,
        start_seconds: float = 0.0,
        memory: Mapping[str, int] = NO_LIMITS,
        users: Users | None = None,
    ) -> None:
        """*start_seconds*: from a job's start to its first step, for policies that promise a time.

        *memory*: bytes of a device by type, as far as they are known. *users*: who share the devices, and how.
        """
        self.start_seconds = start_seconds
        self.memory = DeviceMemory(memory)
        self.placement = Placement(pools)
        self.policy = policy
        self.throughput = throughput
        # What policies see: types that do not hold a job are not usable for it.
        self._throughput = HeldThroughput(throughput) if memory else throughput
        self._assignment = Assignment(self.placement, self._throughput, restarts=policy.restarts)
        self.users = users
        self._states: dict[str, ScheduledJob] = {}
        self._asked: dict[str, Job] = {}  # all jobs as they were submitted
        self._limits: dict[str, Limit] = {}  # of those that may not ask for that, for their owners' other jobs
        self._aside: dict[str, ScheduledJob] = {}  # jobs that nothing here holds, or that wait for their owners' others
        self._queue = Queue()
        self._now = -math.inf
        self._round: float | None = None  # the time of the next one, if the policy has rounds and one is asked for
        self._jobs_changed = False

    def handle(self, event: Event) -> list[Action]:
        """Apply *event*; return what must change. Reads no clock."""
        if event.seconds < self._now:
            raise ConfigError(f"time runs backwards: an event at {event.seconds} s after one at {self._now} s")
        self._now = event.seconds
        if isinstance(event, ProgressReported):
            for job_id, steps in event.steps_done.items():
                self._states[job_id].steps_done = steps
            return []
        actions = self._apply(event)
        if self.users is not None and not isinstance(event, Woken):
            actions += self._limit(self.users)
        if self.policy.round_seconds is None:
            return actions + self._decide()
        return actions + self._in_rounds(event, self.policy.round_seconds)

    @property
    def jobs(self) -> dict[str, ScheduledJob]:
        """All jobs that have not ended, by id."""
        return self._states

    def snapshot(self) -> Snapshot:
        return Snapshot(
            now=self._now,
            capacity=self.placement.capacity,
            free=self.placement.free,
            running=self._assignment.running,
            queue=self._queue,
            lacking=self._assignment.lacking,
            throughput=self._throughput,
            machine_sizes=self.placement.machine_sizes,
            jobs_changed=self._jobs_changed,
            start_seconds=self.start_seconds,
        )

    def held(self, job: Job) -> Job | None:
        """*job* with the minimum, the demand and the types that its memory needs; None if nothing here holds it."""
        return self.memory.held(job, self.placement.totals)

    def why_aside(self, job_id: str) -> str | None:
        """Why policies do not see a job, in words: nothing here holds it, or its owner's other jobs come first."""
        state = self._aside.get(job_id)
        if state is None:
            return None
        if self._is_held_back(job_id):
            return self._limits[job_id].why
        return self.memory.why_not(state.job, self.placement.totals)

    def why_no_more(self, job_id: str) -> str:
        """Why a job may not ask for more devices than it has, because of its owner; empty if it may."""
        limit = self._limits.get(job_id)
        return limit.why if limit is not None and limit.demand <= self._states[job_id].allocation else ""

    def _is_held_back(self, job_id: str) -> bool:
        return job_id in self._limits and not self._limits[job_id].demand

    def _limit(self, users: Users) -> list[Action]:
        """Let each job ask for what its owner's share, or cap, has room for; those who are to have less come first."""
        asking = [Asking(job, self._states[name].allocation) for name, job in self._asked.items()]
        if self.policy.sharing == Sharing.TURNS:
            snapshot = self.snapshot()
            asking.sort(key=lambda each: self.policy.order(self._states[each.job.id], snapshot))
        before, self._limits = (
            self._limits,
            users.limits(asking, sum(self.placement.capacity.values()), self.policy.sharing),
        )
        changed = [name for name in self._asked if before.get(name) != self._limits.get(name)]
        changed.sort(key=lambda name: self._limits[name].demand if name in self._limits else math.inf)
        return [action for name in changed for action in self._changed(self._asked[name])]

    def _limited(self, job: Job) -> Job | None:
        """*job* with what it may ask for; None if that is nothing."""
        limit = self._limits.get(job.id)
        if limit is None:
            return job
        if not limit.demand:
            return None
        demand = min(job.demand, limit.demand)
        return replace(job, demand=demand, min=min(job.min, demand), priority=limit.priority)

    def _seen(self, job: Job, on: Collection[str] = ()) -> Job | None:
        """*job* as policies see it; None if they do not."""
        limited = self._limited(job)
        return self.memory.held(limited, self.placement.totals, on) if limited is not None else None

    def _apply(self, event: Event) -> list[Action]:
        actions: list[Action] = []
        if isinstance(event, JobArrived):
            self._arrived(event.job)
        elif isinstance(event, JobChanged):
            actions = self._changed(event.job)
        elif isinstance(event, JobsRestored):
            for job in event.waiting:
                self._arrived(job, event.attained.get(job.id, 0.0))
            for job, devices in event.running:
                self._arrived(job, event.attained.get(job.id, 0.0))
                if job.id in self._aside:
                    actions.append(SuspendJob(job.id))
                    continue
                self._queue.remove(job.id)
                actions += self._queue_suspended(self._assignment.adopt(self._now, self._states[job.id], devices))
        elif isinstance(event, JobEnded):
            state = self._states.pop(self._known(event.job_id).id)
            self._jobs_changed = True
            self._asked.pop(event.job_id)
            self._limits.pop(event.job_id, None)
            self.policy.forget(state.job)  # it may come back as another one, as after a pause
            if event.job_id in self._queue:
                self._queue.remove(event.job_id)
            elif self._aside.pop(event.job_id, None) is None:
                actions = self._assignment.end(self._now, state)
        elif isinstance(event, DevicesLost):
            for device in event.devices:
                if not self.placement.knows(device):
                    raise ConfigError(f"device {device} is not part of the cluster")
            actions = self._queue_suspended(self._assignment.lose(self._now, event.devices))
        elif isinstance(event, DevicesJoined):
            self.placement.join(event.devices)
            for name in list(self._aside):  # a new machine may hold them
                self._changed(self._asked[name])
        return actions

    def _known(self, job_id: str) -> ScheduledJob:
        if job_id not in self._states:
            raise ConfigError(f"there is no job {job_id}, or it has ended")
        return self._states[job_id]

    def _changed(self, job: Job) -> list[Action]:
        state = self._known(job.id)
        self._asked[job.id] = job
        self._jobs_changed = True
        self.policy.forget(state.job)
        held = self._seen(job, state.counts)
        if job.id in self._queue:
            self._queue.remove(job.id)
        elif self._aside.pop(job.id, None) is None:
            if held is not None and (held.types is None or held.types.issuperset(state.counts)):
                return self._queue_suspended(self._assignment.ask_for(self._now, state, held))
            actions = self._queue_suspended(self._assignment.apply(self._now, [(state, NOTHING)]))
            self._queue.remove(job.id)
            self._take_in(state, job, held)
            return actions
        self._take_in(state, job, held)
        return []

    def _take_in(self, state: ScheduledJob, job: Job, held: Job | None) -> None:
        """It has no devices: it waits, or is set aside as long as policies are not to see it."""
        state.job = held or job
        if held is None:
            self._aside[job.id] = state
        else:
            self._wait(state)

    def _arrived(self, job: Job, attained: float = 0.0) -> None:
        if job.id in self._states:
            raise ConfigError(f"there is a job {job.id} already")
        if not any(self._throughput.usable(job, name) for name in self.placement.machine_sizes):
            types = ", ".join(self.placement.machine_sizes)
            raise ConfigError(
                f"job {job.id} ({job.workload}, node size {job.node_size}) can run on no device of this cluster "
                f"({types}): there is no profile, or its virtual nodes are too large for their memory"
            )
        self._asked[job.id] = job
        held = self.held(job)
        state = ScheduledJob(held or job, attained_before=attained)
        state.changed_seconds = self._now
        self._states[job.id] = state
        self._jobs_changed = True
        self._take_in(state, job, held)

    def _wait(self, state: ScheduledJob) -> None:
        self._queue.add(self.policy.order(state, self.snapshot()), state)

    def _in_rounds(self, event: Event, round_seconds: float) -> list[Action]:
        """Decide when a round begins, and see to it that there is a next one while there are jobs."""
        actions: list[Action] = []
        if isinstance(event, Woken) and self._round is not None and event.seconds >= self._round:
            self._round = None
            actions = self._decide()
        if self._round is None and self._states:
            self._round = _next_multiple(round_seconds, self._now, later=isinstance(event, Woken))
            actions.append(WakeAt(self._round))
        return actions

    def _decide(self) -> list[Action]:
        decision = self.policy.allocate(self.snapshot())
        self._jobs_changed = False
        grants = []
        for job_id, grant in decision.grants.items():
            if job_id not in self._states:
                raise PolicyError(
                    f"policy {self.policy.name} granted devices to job {job_id}, which is unknown or has ended"
                )
            if job_id in self._aside:
                continue
            state = self._states[job_id]
            if 0 < sum(grant.counts.values()) < state.job.min or not self._has_room(state, grant):
                grant = NOTHING
            if job_id in self._queue and grant.counts:
                self._queue.remove(job_id)
            grants.append((state, grant))
        try:
            actions = self._assignment.apply(self._now, grants) if grants else []
        except PolicyError as error:
            raise PolicyError(f"{self.policy.name}: {error}") from None
        actions = self._queue_suspended(actions)
        for state, _ in grants:
            if not state.devices and state.id not in self._queue:
                self._wait(state)  # of the types that it can use, none was free
        if decision.wake_seconds is not None:
            actions.append(WakeAt(decision.wake_seconds))
        return actions

    def _has_room(self, state: ScheduledJob, grant: Grant) -> bool:
        """Whether a grant is of types that hold the job, and not of a device that another job needs the memory of."""
        types = state.job.types
        if grant.beside is not None:
            host = self._states.get(grant.beside)
            return types is None and (host is None or host.job.types is None)
        return types is None or all(name == ANY or name in types for name in grant.counts)

    def _queue_suspended(self, actions: list[Action]) -> list[Action]:
        for action in actions:
            if isinstance(action, SuspendJob):
                self._wait(self._states[action.job_id])
        return actions


def _next_multiple(round_seconds: float, now: float, *, later: bool) -> float:
    """The first beginning of a round that is not before *now*, or is *later* than it."""
    rounds = math.ceil(now / round_seconds)
    while rounds * round_seconds < now or (later and rounds * round_seconds == now):  # a quotient may be rounded down
        rounds += 1
    return rounds * round_seconds
