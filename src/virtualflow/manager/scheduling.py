"""The scheduler of a manager: its decisions go into the records, and errors of its policy are contained."""

from __future__ import annotations

import heapq
import logging
import traceback
from collections.abc import Callable
from dataclasses import replace

from virtualflow.cluster.job import Job
from virtualflow.cluster.messages import (
    Action,
    DevicesJoined,
    DevicesLost,
    Event,
    JobArrived,
    JobEnded,
    JobsRestored,
    ProgressReported,
    ReallocateJob,
    StartJob,
    WakeAt,
)
from virtualflow.cluster.policies.base import Policy
from virtualflow.cluster.scheduler import Scheduler
from virtualflow.cluster.throughput.learnt import Learnt
from virtualflow.manager import description, safe_policy
from virtualflow.manager.description import Cluster
from virtualflow.manager.record import Record
from virtualflow.manager.records import Records
from virtualflow.manager.safe_policy import SafePolicy

START_SECONDS = 5.7  # from a job's start to its first step, as measured: docs/performance.md

_log = logging.getLogger(__name__)


class SchedulerDriver:
    """*done* gives the seconds of its expected time that a job has behind it, for policies that care."""

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        records: Records,
        done: Callable[[Record], float],
    ) -> None:
        self.policy = policy
        self.learnt = Learnt()
        safe_policy = SafePolicy(policy, self._failed, self._is_well)
        self.scheduler = Scheduler(
            cluster.pools,
            safe_policy,
            self.learnt,
            start_seconds=START_SECONDS,
            memory=cluster.memory,
            users=cluster.users,
        )
        self.problem = ""  # what the policy's last failure was, until it is well again
        self._cluster = cluster
        self._records = records
        self._done = done
        self._arrivals: dict[str, float] = {}  # of jobs, on the scheduler's own time
        self._wakes: list[float] = []

    def note_arrivals(self, now: float) -> None:
        """Note when earlier jobs arrived: in the order of the records, even if the clock has jumped since."""
        for record in reversed(self._records.all()):
            now = self._arrivals[record.id] = min(now, record.submitted)

    def note_arrival(self, record: Record, now: float) -> None:
        self._arrivals[record.id] = now

    def job(self, record: Record) -> Job:
        """A job as the scheduler sees it."""
        job = description.for_scheduler(record, len(self.scheduler.placement.devices))
        return replace(job, arrival_seconds=self._arrivals.get(record.id, record.submitted))

    def as_submitted(self, record: Record) -> Job:
        """The same job with people's time of its arrival, and without a limit that it may have at the moment."""
        return description.for_scheduler(replace(record, cap=None), len(self.scheduler.placement.devices))

    def held(self, job_id: str) -> Job | None:
        """A job that runs or waits, as its memory lets it be: with its least number of devices."""
        return self.scheduler.jobs[job_id].job if job_id in self.scheduler.jobs else None

    def is_due(self, now: float) -> bool:
        """Whether the scheduler wanted to be woken by now; only the first call says so."""
        due = bool(self._wakes) and self._wakes[0] <= now
        while self._wakes and self._wakes[0] <= now:
            heapq.heappop(self._wakes)
        return due

    def handle(self, event: Event) -> None:
        """Pass an event to the scheduler, and save what each job should have."""
        try:
            if self.policy.needs_progress:
                done = {job_id: self._done(self._records[job_id]) for job_id in self.scheduler.jobs}
                self.scheduler.handle(ProgressReported(event.seconds, done))
            actions = self.scheduler.handle(event)
        except Exception as error:  # the policy has granted what can't be
            self._failed(error)
            self._start_anew(event)
            return
        changed = {record.id: record for action in actions if (record := self._note(action)) is not None}
        self._records.save(list(changed.values()))  # together: no two jobs are ever found to have the same device

    def _note(self, action: Action) -> Record | None:
        if isinstance(action, WakeAt):
            heapq.heappush(self._wakes, action.seconds)
            return None
        given = action if isinstance(action, StartJob | ReallocateJob) else None
        devices = tuple(given.devices) if given is not None else ()
        return replace(self._records[action.job_id], devices=devices, beside=given.host if given is not None else None)

    def _failed(self, error: Exception) -> None:
        text = f"the policy {self.policy.name} has failed: {type(error).__name__}: {error}. Jobs keep their devices."
        if text != self.problem:
            _log.error("%s\n%s", text, "".join(traceback.format_exception(error)))
            self._records.mark_changed()
        self.problem = text

    def _is_well(self) -> None:
        if self.problem:
            _log.info("the policy %s is well again", self.policy.name)
            self._records.mark_changed()
        self.problem = ""

    def _start_anew(self, event: Event) -> None:
        """The scheduler broke in the middle of a decision: make another one of what each job is known to have."""
        ids, lost = set(self.scheduler.jobs), set(self.scheduler.placement.lost)
        if isinstance(event, JobArrived):
            ids.add(event.job.id)
        elif isinstance(event, JobsRestored):
            ids |= {job.id for job in event.waiting} | {job.id for job, _ in event.running}
        elif isinstance(event, JobEnded):
            ids.discard(event.job_id)
        elif isinstance(event, DevicesLost):
            lost |= set(event.devices)
        elif isinstance(event, DevicesJoined):
            lost -= set(event.devices)
        records, jobs = [], []
        for record in self._records.all():
            if record.id not in ids:
                continue
            job = self.job(record)
            held = self.scheduler.held(job)
            has = tuple(device for device in record.devices if device not in lost)[: held.demand if held else 0]
            has = has if held is not None and len(has) >= held.min else ()
            host = record.beside if record.beside in ids else None  # one that is gone leaves its devices
            records.append(replace(record, devices=has, beside=host))
            jobs.append((job, has, host))
        self.scheduler = safe_policy.made_anew(self.scheduler, self._cluster.pools, lost, event.seconds, jobs)
        heapq.heappush(self._wakes, event.seconds + safe_policy.RETRY_SECONDS)
        self._records.save(records)
