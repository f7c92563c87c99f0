"""The loop: a heap of what happens next, a virtual clock, and the scheduler with its one method."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial

from virtualflow.cluster.job import Job
from virtualflow.cluster.messages import (
    Action,
    DevicesJoined,
    DevicesLost,
    Event,
    JobArrived,
    JobChanged,
    JobEnded,
    ProgressReported,
    ReallocateJob,
    StartJob,
    SuspendJob,
    WakeAt,
    Woken,
)
from virtualflow.cluster.policies.base import Policy
from virtualflow.cluster.scheduler import Scheduler
from virtualflow.cluster.throughput.goodput import Goodput
from virtualflow.cluster.throughput.model import Speed, Throughput
from virtualflow.core.devices import Pool
from virtualflow.core.wording import counted
from virtualflow.errors import PolicyError
from virtualflow.sim.costs import Costs
from virtualflow.sim.execution import Execution, Spent
from virtualflow.sim.result import Accounts, JobResult, Run, Segment
from virtualflow.sim.standstill import Standstill

Disturbance = DevicesLost | DevicesJoined | JobChanged  # about a job that has ended or not arrived: ignored
ReportProgress = Callable[[int, int], None]  # jobs that ended, of how many
WatchEvent = Callable[[Scheduler, Event], None]  # the scheduler after it has handled an event, and that event


class _Order(IntEnum):
    """What comes first of things at the same time: ends free devices before arrivals ask for them."""

    LOOK = 0
    DEVICES = 1
    ARRIVAL = 2
    WAKE = 3


@dataclass(slots=True)
class _Timeline:
    """What a job has had so far."""

    job: Job
    start_seconds: float | None = None
    since: float = 0.0
    segments: list[Segment] = field(default_factory=list)


def simulate(
    jobs: Sequence[Job],
    pools: Sequence[Pool],
    policy: Policy,
    throughput: Throughput,
    costs: Costs,
    *,
    failures: Iterator[Disturbance] | None = None,
    report: ReportProgress | None = None,
    watch: WatchEvent | None = None,
) -> Run:
    """Run all jobs to their end. The same arguments give the same result, to the bit.

    Under a policy that changes the batch, jobs run at their best one, as far as their goodput is known.
    """
    if policy.changes_batch and isinstance(throughput, Goodput):
        throughput = throughput.adapting()
    return _Engine(jobs, pools, policy, throughput, costs, failures, report, watch).run()


class _Engine:
    def __init__(
        self,
        jobs: Sequence[Job],
        pools: Sequence[Pool],
        policy: Policy,
        throughput: Throughput,
        costs: Costs,
        failures: Iterator[Disturbance] | None,
        report: ReportProgress | None,
        watch: WatchEvent | None,
    ) -> None:
        self._scheduler = Scheduler(pools, policy, throughput, start_seconds=costs.boot)
        self._policy, self._throughput, self._costs = policy, throughput, costs
        self._failures = failures
        self._report = report
        self._watch = watch
        self._total = len(jobs)
        self._heap: list[tuple[float, int, int, object]] = []
        self._counter = 0
        self._spent = Spent()
        self._accounts = Accounts(sum(pool.count for pool in pools))
        self._executions: dict[str, Execution] = {}
        self._timelines: dict[str, _Timeline] = {}
        self._finished: list[JobResult] = []
        self._events = 0
        self._shares = False  # whether any job ever shared devices
        self._partners: dict[str, tuple[str | None, tuple[str, ...]]] = {}
        self._standstill = Standstill(policy, costs)
        for job in jobs:
            self._push(job.arrival_seconds, _Order.ARRIVAL, job)
        self._accounts.begin(self._heap[0][0])

    def run(self) -> Run:
        self._next_failure()
        while len(self._finished) < self._total:
            if not self._heap:
                raise PolicyError(self._stuck())
            seconds, order, _, what = heapq.heappop(self._heap)
            self._accounts.advance(seconds, self._scheduler.placement)
            if order == _Order.LOOK:
                self._look(seconds, what)
            elif isinstance(what, Job):
                self._arrive(seconds, what)
            elif order == _Order.DEVICES:
                assert isinstance(what, Disturbance)
                self._disturb(what)
                self._next_failure()
            else:
                self._standstill.woken(seconds, self._executions.values())
                self._handle(Woken(seconds))
        self._accounts.close(self._spent)
        return Run(self._policy.name, tuple(self._finished), self._accounts, self._events)

    def _push(self, seconds: float, order: _Order, what: object) -> None:
        self._counter += 1
        heapq.heappush(self._heap, (seconds, order, self._counter, what))

    def _next_failure(self) -> None:
        if self._failures is not None and (event := next(self._failures, None)) is not None:
            self._push(event.seconds, _Order.DEVICES, event)

    def _arrive(self, seconds: float, job: Job) -> None:
        self._executions[job.id] = Execution(job, self._costs, self._spent)
        self._timelines[job.id] = _Timeline(job)
        self._handle(JobArrived(seconds, job))

    def _disturb(self, what: Disturbance) -> None:
        if not isinstance(what, JobChanged):
            self._handle(what)
        elif (execution := self._executions.get(what.job.id)) is not None:
            execution.change(what.seconds, what.job)
            self._handle(what)
            self._refresh(what.seconds, what.job.id)

    def _look(self, seconds: float, what: object) -> None:
        assert isinstance(what, tuple)
        job_id, version = what
        execution = self._executions.get(job_id)
        if execution is None or execution.version != version:
            return
        if execution.ends_at(seconds):
            self._end(seconds, execution)
        else:
            self._refresh(seconds, job_id)

    def _end(self, seconds: float, execution: Execution) -> None:
        execution.advance(seconds)
        job = execution.job
        timeline = self._timelines.pop(job.id)
        self._close_segment(timeline, execution, seconds)
        assert timeline.start_seconds is not None
        del self._executions[job.id]
        self._finished.append(
            JobResult(
                job,
                timeline.start_seconds,
                seconds,
                execution.resizes,
                self._alone_seconds(job),
                tuple(timeline.segments),
            )
        )
        if self._report is not None:
            self._report(len(self._finished), self._total)
        self._handle(JobEnded(seconds, job.id))

    def _alone_seconds(self, job: Job) -> float:
        """How long it would have taken on its full demand from the moment it came."""
        return self._costs.boot + job.steps / self._scheduler.snapshot().fastest(job)

    def _handle(self, event: Event) -> None:
        self._events += 1
        if self._policy.needs_progress:
            for execution in self._executions.values():
                execution.advance(event.seconds)
            done = {name: execution.steps_done for name, execution in self._executions.items() if execution.devices}
            done = {name: steps for name, steps in done.items() if name in self._scheduler.jobs}
            self._scheduler.handle(ProgressReported(event.seconds, done))
        for action in self._scheduler.handle(event):
            self._carry_out(event.seconds, action)
        self._refresh_shared(event.seconds)
        if self._watch is not None:
            self._watch(self._scheduler, event)

    def _carry_out(self, seconds: float, action: Action) -> None:
        if isinstance(action, WakeAt):
            self._push(action.seconds, _Order.WAKE, None)
            return
        execution, timeline = self._executions[action.job_id], self._timelines[action.job_id]
        self._close_segment(timeline, execution, seconds)
        if isinstance(action, SuspendJob):
            execution.suspend(seconds)
            return
        if isinstance(action, StartJob):
            if timeline.start_seconds is None:
                timeline.start_seconds = seconds
            execution.start(seconds, action.devices, resumed=action.resumed)
        elif isinstance(action, ReallocateJob):
            execution.resize(seconds, action.devices, restart=action.restart)
        execution.co_located = action.host is not None
        self._shares = self._shares or execution.co_located
        self._refresh(seconds, action.job_id)

    def _close_segment(self, timeline: _Timeline, execution: Execution, seconds: float) -> None:
        if execution.devices and seconds > timeline.since:
            timeline.segments.append(Segment(timeline.since, seconds, execution.devices))
        timeline.since = seconds

    def _refresh(self, seconds: float, job_id: str) -> None:
        """Have a job take on its speed, and plan when to look at it again."""
        execution = self._executions[job_id]
        execution.look(seconds, partial(self._speed, job_id))
        due = execution.next_look()
        if due < math.inf:  # else nothing changes by itself
            self._push(max(due, seconds), _Order.LOOK, (job_id, execution.version))

    def _refresh_shared(self, seconds: float) -> None:
        """Jobs on shared devices change their speed when those they share them with come or go."""
        if not self._shares:
            return
        running = self._scheduler.snapshot().running.items()
        now = {name: (state.host, state.co_located) for name, state in running if state.host or state.co_located}
        for job_id in sorted({*now, *self._partners}):
            execution = self._executions.get(job_id)
            if execution is not None and execution.devices and now.get(job_id) != self._partners.get(job_id):
                execution.co_located = self._scheduler.jobs[job_id].host is not None
                self._refresh(seconds, job_id)
        self._partners = now

    def _speed(self, job_id: str, devices: tuple[str, ...]) -> Speed:
        state = self._scheduler.jobs[job_id]
        pools = self._scheduler.placement.pools(devices)
        speed = self._throughput.speed(state.job, pools)
        if not state.host and not state.co_located:
            return speed
        # The slowest device decides: each co-located job is on devices of its own.
        kind = pools[0].device_type
        parts = [self._shared(state.host, job_id, kind)[1]] if state.host else []
        left = min([*parts, *(self._shared(job_id, guest, kind)[0] for guest in state.co_located)])
        return Speed(speed.steps_per_second * left, speed.devices)

    def _shared(self, host: str, guest: str, device_type: str) -> tuple[float, float]:
        jobs = self._scheduler.jobs
        return self._policy.shared_speeds(jobs[host].job, jobs[guest].job, device_type, self._throughput)

    def _stuck(self) -> str:
        waiting = sorted(self._timelines)[:5]
        return (
            f"policy {self._policy.name} stopped deciding: {counted(len(self._timelines), 'job')} would wait "
            f"for ever, such as "
            f"{', '.join(waiting)}, with {self._scheduler.snapshot().idle} devices idle"
        )
