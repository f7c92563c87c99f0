"""The scheduler of a manager: what it decides is noted in the books, and what its policy gets wrong hurts nobody."""

from __future__ import annotations

import heapq
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
    JobsFound,
    Progress,
    Resize,
    Start,
    WakeAt,
)
from virtualflow.cluster.policies.base import Policy
from virtualflow.cluster.scheduler import Scheduler
from virtualflow.cluster.throughput.model import Profiled
from virtualflow.manager import description, safe_policy
from virtualflow.manager.books import Books
from virtualflow.manager.description import Cluster
from virtualflow.manager.records import Record
from virtualflow.manager.safe_policy import Careful

START_SECONDS = 5.7  # from a job's start to its first step, as measured: docs/performance.md


class Brain:
    """*done* tells how far a job is, for policies that care; *say* writes a log."""

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        books: Books,
        done: Callable[[Record], float],
        say: Callable[[str], None],
    ) -> None:
        self.policy = policy
        careful_one = Careful(policy, self._failed, self._is_well)
        self.scheduler = Scheduler(cluster.pools, careful_one, Profiled(), start_seconds=START_SECONDS)
        self.trouble = ""  # what the policy's last failure was, until it is well again
        self._cluster = cluster
        self._books = books
        self._done = done
        self._say = say
        self._arrivals: dict[str, float] = {}  # of jobs, on the scheduler's own time
        self._wakes: list[float] = []

    def note_arrivals(self, now: float) -> None:
        """Of the jobs that were there before: in the order of the books, whatever the clock was then."""
        for record in reversed(self._books.all()):
            now = self._arrivals[record.id] = min(now, record.submitted)

    def note_arrival(self, record: Record, now: float) -> None:
        self._arrivals[record.id] = now

    def job(self, record: Record) -> Job:
        """A job as the scheduler sees it."""
        job = description.for_scheduler(record, len(self.scheduler.placement.devices))
        return replace(job, arrival_seconds=self._arrivals.get(record.id, record.submitted))

    def is_due(self, now: float) -> bool:
        """Whether the scheduler wanted to be woken by now; that is told once."""
        due = bool(self._wakes) and self._wakes[0] <= now
        while self._wakes and self._wakes[0] <= now:
            heapq.heappop(self._wakes)
        return due

    def handle(self, event: Event) -> None:
        """Hear the scheduler, and take down what each job should have."""
        try:
            if self.policy.needs_progress:
                done = {job_id: self._done(self._books[job_id]) for job_id in self.scheduler.jobs}
                self.scheduler.handle(Progress(event.seconds, done))
            actions = self.scheduler.handle(event)
        except Exception as error:  # the policy has granted what can't be
            self._failed(error)
            self._start_anew(event)
            return
        changed = [record for action in actions if (record := self._note(action)) is not None]
        self._books.save(changed)  # together: no two jobs are ever found to have the same device

    def _note(self, action: Action) -> Record | None:
        if isinstance(action, WakeAt):
            heapq.heappush(self._wakes, action.seconds)
            return None
        record = self._books[action.job_id]
        given = action if isinstance(action, Start | Resize) else None
        record.devices = list(given.devices) if given is not None else []
        record.beside = given.host if given is not None else None
        return record

    def _failed(self, error: Exception) -> None:
        told = f"the policy {self.policy.name} has failed: {type(error).__name__}: {error}. Jobs keep their devices."
        if told != self.trouble:
            self._say(f"{told}\n{''.join(traceback.format_exception(error))}")
            self._books.version += 1
        self.trouble = told

    def _is_well(self) -> None:
        if self.trouble:
            self._say(f"the policy {self.policy.name} is well again")
            self._books.version += 1
        self.trouble = ""

    def _start_anew(self, event: Event) -> None:
        """The scheduler broke in the middle of a decision: make another one of what each job is known to have."""
        ids, lost = set(self.scheduler.jobs), set(self.scheduler.placement.lost)
        if isinstance(event, JobArrived):
            ids.add(event.job.id)
        elif isinstance(event, JobsFound):
            ids |= {job.id for job in event.waiting} | {job.id for job, _ in event.running}
        elif isinstance(event, JobEnded):
            ids.discard(event.job_id)
        elif isinstance(event, DevicesLost):
            lost |= set(event.devices)
        elif isinstance(event, DevicesJoined):
            lost -= set(event.devices)
        records = [record for record in self._books.all() if record.id in ids]
        jobs = []
        for record in records:
            job = self.job(record)
            has = [device for device in record.devices if device not in lost][: job.demand]
            record.devices = has if len(has) >= job.least else []
            if record.beside not in ids:
                record.beside = None  # the host is gone, and leaves its devices
            jobs.append((job, tuple(record.devices), record.beside))
        self.scheduler = safe_policy.made_anew(self.scheduler, self._cluster.pools, lost, event.seconds, jobs)
        heapq.heappush(self._wakes, event.seconds + safe_policy.RETRY_SECONDS)
        self._books.save(records)
