"""The service that owns a cluster of jobs: the scheduler on the wall clock, and a coordinator for each running job.

The scheduler's actions are written down as what each job *should* have. ``tick`` compares that with what it *has*, as
its folder shows, and does what leads from one to the other: launch, move, stop. How a record changes is decided by
``lifecycle``. Nothing else is remembered between two ticks, so that a manager that was killed goes on where another one
stopped, and jobs that run meanwhile are left alone.
"""

from __future__ import annotations

import errno
import logging
import shutil
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from virtualflow.cluster.messages import (
    DevicesJoined,
    DevicesLost,
    JobArrived,
    JobsRestored,
    Woken,
)
from virtualflow.cluster.policies.base import Policy
from virtualflow.cluster.scheduler import Scheduler
from virtualflow.core.job_state import JobState
from virtualflow.errors import (
    DamagedError,
    ManagerError,
    RecordsError,
    UnknownJobError,
    VirtualFlowError,
)
from virtualflow.job import checkpoints, launch
from virtualflow.manager import description, lifecycle, orphans
from virtualflow.manager.description import Cluster
from virtualflow.manager.fleet import Fleet, Launcher
from virtualflow.manager.reconciler import Reconciler
from virtualflow.manager.record import Record
from virtualflow.manager.records import Records
from virtualflow.manager.submission import Submission, check_priority
from virtualflow.manager.takeover import taken_over
from virtualflow.system.clock import Steady
from virtualflow.system.home import home, new_job_id

MIN_FREE_BYTES = 32 << 20  # on disk, for a submit
STRAY_SECONDS = 10.0  # between two looks for jobs that run and are not known
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_log = logging.getLogger(__name__)


class Manager:
    """Its public methods may be called from any thread."""

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        records: Records,
        clock: Callable[[], float] = time.time,
        launcher: Launcher = launch.start,
    ) -> None:
        self.cluster = cluster
        self.policy = policy
        self.clock = clock  # what is written down for people
        self.started = clock()
        self.records = records
        self.fleet = Fleet(cluster.patience_seconds, launcher)
        self.lock = threading.RLock()
        self._seconds = Steady(clock)  # what the scheduler goes by
        self.reconciler = Reconciler(cluster, policy, records, self.fleet, clock, self._seconds)
        self._driver = self.reconciler.driver
        self._handle, self._job = self._driver.handle, self._driver.job
        self._problems: dict[str, str] = {}  # by job: what was last logged of it
        self._not_mine: set[str] = set()  # folders of jobs that ``vf run`` has started
        self._strays_after = 0.0
        self._stopping = False
        self._take_over()

    def submit(self, submission: Submission) -> str:
        """Take a job in; once this returns, it is never lost."""
        submission.check(self.devices)
        if (given := submission.description.from_checkpoint) is not None:
            checkpoint = str(checkpoints.checked(Path(given)))
            submission = replace(submission, description=replace(submission.description, from_checkpoint=checkpoint))
        with self.lock:
            record = submission.record(self._new_id(), self.clock())
            folder = self.fleet.folder(record.id)
            try:
                _check_disk()
                folder.make(exist_ok=False)
            except OSError as error:
                raise _not_taken(error) from error
            try:
                description.write_folder(folder, record, self.reconciler.spec(record, ()), submission)
                self.records.add(record)
            except (OSError, ValueError, VirtualFlowError) as error:
                shutil.rmtree(folder.path, ignore_errors=True)  # made a moment ago, by this very call
                raise _not_taken(error) from error
            self._arrives(record)
        return record.id

    def set_priority(self, job_id: str, priority: float) -> None:
        check_priority(priority)
        with self.lock:
            self.reconciler.learn(self.records.unfinished(job_id).id, priority=priority)

    def cap(self, job_id: str, devices: int | None) -> None:
        """Let a job have at most so many devices; None lifts that."""
        if devices is not None and not 1 <= devices <= self.devices:
            raise ManagerError(f"a job can have 1 to {self.devices} device(s) here, not {devices}")
        with self.lock:
            self.reconciler.learn(self.records.unfinished(job_id).id, cap=devices)

    def pause(self, job_id: str) -> None:
        """Stop a job with a checkpoint until ``resume``."""
        with self.lock:
            self.reconciler.change(self.records.unfinished(job_id).id, lifecycle.PauseRequested(self.clock()))

    def resume(self, job_id: str, from_checkpoint: str | None = None) -> None:
        """Let a paused job go on: from its last checkpoint, or from the file or the step of its own that is given."""
        with self.lock:
            record = self.records.unfinished(job_id)
            if from_checkpoint is not None:
                self._go_back(record, from_checkpoint)
            self.reconciler.change(job_id, lifecycle.ResumeRequested(self.clock()))

    def _go_back(self, record: Record, choice: str) -> None:
        if record.state != JobState.PAUSED:
            raise ManagerError(f"job {record.id} is not paused: its state is {record.state}. Pause it first.")
        folder = self.fleet.folder(record.id)
        with folder.locked():
            checkpoint = checkpoints.chosen(folder, choice)
            for path in checkpoints.set_newer_aside(folder, checkpoint):
                _log.info("job %s: set aside: %s", record.id, path)
            if checkpoint.parent != folder.checkpoints:
                job = replace(record.description, from_checkpoint=str(checkpoint))
                folder.change(self.reconciler.spec(self.records.update(record.id, description=job), ()))

    def cancel(self, job_id: str) -> None:
        """End a job for good."""
        with self.lock:
            self.reconciler.change(self.records.unfinished(job_id).id, lifecycle.CancelRequested(self.clock()))

    def orphans(self) -> list[dict[str, Any]]:
        """Folders of jobs that nobody has a record of, and that do not run."""
        with self.lock:
            known = {record.id for record in self.records.all()}
        return [orphans.described(folder) for folder in orphans.strays(known)]

    def take_in(self, job_id: str) -> None:
        """Make a job of an orphan again: paused, until ``resume``."""
        with self.lock:
            folder = self.fleet.folder(job_id)
            if job_id in self.records or "/" in job_id or not folder.path.is_dir():
                raise UnknownJobError(f"there is no orphan {job_id!r}. `vf cluster orphans` lists them.")
            try:
                record = orphans.adopted(folder, self.clock())
            except OSError as error:
                raise ManagerError(f"what is left of job {job_id} is not enough to go on: {error}") from error
            self._take_in(record)

    @property
    def scheduler(self) -> Scheduler:
        return self._driver.scheduler

    @property
    def problems(self) -> list[str]:
        """What those who look should know, beside what there is to know of each job."""
        found = [self._driver.problem, self.records.problem]
        if names := ", ".join(self.records.unreadable):
            found.append(f"the records of these jobs are damaged, and left as they are: {names}")
        return [text for text in found if text]

    def problem_of(self, job_id: str) -> str:
        """What goes wrong with a job, and is tried again."""
        return (self._problems.get(job_id, "").strip().splitlines() or [""])[-1]

    @property
    def devices(self) -> int:
        """How many devices the cluster has, or has had."""
        return len(self.scheduler.placement.devices)

    def change_machines(self, news: Iterable[DevicesLost | DevicesJoined], machines: Mapping[str, str]) -> None:
        """Machines have come or gone; *machines* has the devices that are in the cluster now."""
        with self.lock:
            self.reconciler.machines.update(machines)
            for event in news:
                self._handle(replace(event, seconds=self._seconds()))

    def lose(self, devices: Iterable[str]) -> None:
        """These devices are gone, or are wanted for something else: jobs go on with the others they have."""
        with self.lock:
            lost = self.scheduler.placement.lost
            if gone := tuple(device for device in self._known(devices) if device not in lost):
                self.records.lose(gone)
                self._handle(DevicesLost(self._seconds(), gone))

    def give_back(self, devices: Iterable[str]) -> None:
        """Lost devices can be used again."""
        with self.lock:
            lost = self.scheduler.placement.lost
            if back := tuple(device for device in self._known(devices) if device in lost):
                self.records.give_back(back)
                self._handle(DevicesJoined(self._seconds(), back))

    def stop_jobs(self) -> None:
        """Stop all jobs with a checkpoint; they go on under the next manager."""
        with self.lock:
            self._stopping = True
            for record in self.records.running():
                self.reconciler.change(record.id, lifecycle.ShutdownRequested())

    @property
    def has_stopped(self) -> bool:
        """Whether ``stop_jobs`` was called, and no job runs any more."""
        return self._stopping and not self.records.running()

    def state_of(self, record: Record) -> JobState:
        """The record's, in more detail while the job runs."""
        if record.state != JobState.RUNNING:
            return record.state
        state = self.fleet.state(record.id).get("state", JobState.STARTING)
        live = (JobState.STARTING, JobState.RUNNING, JobState.RESIZING)
        return JobState(state) if state in live else JobState.RUNNING

    def tick(self) -> None:
        """Look at the jobs, wake the scheduler, and do what is due."""
        with self.lock:
            self.records.save_the_rest()
            now = self._seconds()
            if not self._stopping and self._driver.is_due(now):
                self._handle(Woken(now))
            well = self._for_each(self.reconciler.look_at, [record.id for record in self.records.running()])
            self._for_each(
                self.reconciler.direct, [each for each in well if self.records[each].state == JobState.RUNNING]
            )
            if not self._stopping:
                waiting = [each for each in self.records.all() if each.state == JobState.QUEUED and each.devices]
                self._for_each(self.reconciler.launch, [record.id for record in waiting])
            if now > self._strays_after:
                self._strays_after = now + STRAY_SECONDS
                for record in self._running_strays():
                    self._take_in(record)
            self.records.backups.make_if_due(self.clock())

    def _for_each(self, action: Callable[[str], None], job_ids: Iterable[str]) -> list[str]:
        """What goes wrong with one job is logged, tried again, and no other job's concern. Return the others."""
        well = []
        for job_id in job_ids:
            try:
                action(job_id)
                self._problems.pop(job_id, None)
                well.append(job_id)
            except Exception:
                text = traceback.format_exc()
                if self._problems.get(job_id) != text:
                    _log.error("job %s:\n%s", job_id, text)
                    self.records.version += 1
                self._problems[job_id] = text
        return well

    def _take_over(self) -> None:
        """Go on with what an earlier manager has left, without touching jobs that run."""
        devices = set(self.scheduler.placement.devices)
        if lost := self.records.lost() & devices:
            self._handle(DevicesLost(self._seconds(), tuple(sorted(lost))))
        self._for_each(self._catch_up, [record.id for record in self.records.all() if not record.is_over])
        self.records.save(self._running_strays())
        self._driver.note_arrivals(self._seconds())
        for record in self.records.running():
            self.fleet.adopt(record.id, record.devices)
            self.reconciler.change(record.id, lifecycle.ManagerReplaced())
        found = taken_over(self.records.all(), devices - lost)
        self.records.save([each for each in (*found.running, *found.waiting) if each != self.records[each.id]])
        running = tuple((self._job(record), record.devices) for record in found.running)
        self._handle(JobsRestored(self._seconds(), running, tuple(map(self._job, found.waiting))))

    def _catch_up(self, job_id: str) -> None:
        record = self.records[job_id]
        if record.state == JobState.RUNNING:
            return  # what has become of it is seen at the first look
        if facts := orphans.caught_up(record, self.fleet.folder(job_id), self.clock()):
            _log.warning("job %s is %s, though its record says %s: that is older", job_id, facts["state"], record.state)
            self.records.update(job_id, **facts)

    def _running_strays(self) -> list[Record]:
        """Jobs of a manager's that run, and of which there is no record."""
        found = []
        known = {record.id for record in self.records.all()} | self._not_mine
        for path in sorted(set((home() / "jobs").glob("*")) - {home() / "jobs" / name for name in known}):
            folder = self.fleet.folder(path.name)
            try:
                if not orphans.is_managed(folder):
                    self._not_mine.add(path.name)
                elif folder.is_locked():
                    found.append(orphans.adopted(folder, self.clock()))
                    _log.warning("job %s runs, and there is no record of it: it is taken in", path.name)
            except (OSError, DamagedError) as error:
                _log.error("%s is locked by an unknown process: %s", path, error)
        return found

    def _take_in(self, record: Record) -> None:
        """A job that was found while this manager was at work."""
        if record.state == JobState.RUNNING:
            self.fleet.adopt(record.id, record.devices)
            record = replace(record, devices=())  # the policy decides where it should be
        self.records.save([record])
        if record.state == JobState.RUNNING:
            self._arrives(record)

    def _arrives(self, record: Record) -> None:
        self._driver.note_arrival(record, self._seconds())
        self._handle(JobArrived(self._seconds(), self._job(record)))

    def _known(self, devices: Iterable[str]) -> Iterable[str]:
        for device in devices:
            if not self.scheduler.placement.knows(device):
                raise ManagerError(f"there is no device {device!r}. `vf devices` lists them.")
            yield device

    def _new_id(self) -> str:
        while (job_id := new_job_id()) in self.records or self.fleet.folder(job_id).path.exists():
            pass
        return job_id


def _not_taken(error: Exception) -> VirtualFlowError:
    lacks_room = isinstance(error, RecordsError) or getattr(error, "errno", None) in NO_ROOM
    return (RecordsError if lacks_room else ManagerError)(f"the job was not taken in: {error}")


def _check_disk() -> None:
    free = shutil.disk_usage(home()).free
    if free < MIN_FREE_BYTES:
        raise RecordsError(f"the disk of {home()} is full: {free >> 20} MB are left. Jobs go on; submits must wait.")
