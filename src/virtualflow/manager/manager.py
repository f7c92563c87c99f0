"""The service that owns a cluster of jobs: the scheduler on the wall clock, and a coordinator for each running job.

The scheduler's actions are written down as what each job *should* have. ``tick`` compares that with what it *has*, as
its folder shows, and does what leads from one to the other: launch, move, stop. How a record changes is decided by
``lifecycle``. Nothing else is remembered between two ticks, so that a manager continues where one that was killed has
stopped, and jobs that run meanwhile are left alone.
"""

from __future__ import annotations

import errno
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from virtualflow.cluster.messages import (
    DevicesJoined,
    DevicesLost,
    JobsRestored,
    Woken,
)
from virtualflow.cluster.policies.base import Policy
from virtualflow.cluster.scheduler import Scheduler
from virtualflow.core.job_state import JobState
from virtualflow.core.job_terms import JobTerms
from virtualflow.core.wording import counted
from virtualflow.errors import (
    ManagerError,
    RecordsError,
    UnknownJobError,
    VirtualFlowError,
)
from virtualflow.job import checkpoints
from virtualflow.manager import description, lifecycle, orphans
from virtualflow.manager.dependencies import Dependencies
from virtualflow.manager.description import Cluster
from virtualflow.manager.fleet import Fleet
from virtualflow.manager.job_errors import JobErrors
from virtualflow.manager.notices import Notices
from virtualflow.manager.reconciler import Reconciler
from virtualflow.manager.record import Record
from virtualflow.manager.records import Records
from virtualflow.manager.submission import Submission, check_priority
from virtualflow.manager.takeover import taken_over
from virtualflow.manager.windows import Window, due_of
from virtualflow.system.clock import SteadyClock
from virtualflow.system.home import home, new_job_id

MIN_FREE_BYTES = 32 << 20  # on disk, for a submit
ORPHAN_SECONDS = 10.0  # between two looks for jobs that run and are not known
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
        fleet: Fleet | None = None,
    ) -> None:
        self.cluster = cluster
        self.policy = policy
        self.clock = clock  # what is written down for people
        self.started = clock()
        self.records = records
        self.fleet = fleet or Fleet(cluster.patience_seconds)
        self.lock = threading.RLock()
        self._seconds = SteadyClock(clock)  # what the scheduler goes by
        self.reconciler = Reconciler(cluster, policy, records, self.fleet, clock, self._seconds)
        self._driver = self.reconciler.driver
        self._handle, self._job = self._driver.handle, self._driver.job
        self._errors = JobErrors(records.mark_changed)
        self._notices = Notices(records, self._seconds)
        self._orphans = orphans.RunningOrphans()
        self._look_for_orphans_after = 0.0
        self._stopping = False
        self._take_over()

    def submit(self, submission: Submission) -> str:
        """Take a job in; once this returns, it is never lost."""
        submission.check(self.devices)
        if (given := submission.description.from_checkpoint) is not None:
            checkpoint = str(checkpoints.checked(Path(given)))
            submission = replace(submission, description=replace(submission.description, from_checkpoint=checkpoint))
        with self.lock:
            self._check_terms(submission.terms)
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

    def _check_terms(self, terms: JobTerms) -> None:
        """Raises ManagerError if the job could never run, or not in time, whatever else there is to do."""
        users = self.cluster.users
        cap = users.cap_of(terms.owner) if users is not None else None
        if cap is not None and terms.min > cap:
            most = counted(cap, "device")
            raise ManagerError(
                f"{terms.owner}'s jobs may have {most} together here, and this one needs at least {terms.min}"
            )
        if terms.by is not None and not terms.by > self.clock():
            raise ManagerError("the deadline is in the past already")
        for job_id in terms.after:
            if self.records[job_id].is_over and self.records[job_id].state != JobState.DONE:
                raise ManagerError(f"no job can follow {job_id}: its state is {self.records[job_id].state}")

    def set_priority(self, job_id: str, priority: float) -> None:
        check_priority(priority)
        with self.lock:
            self.reconciler.learn(self.records.unfinished(job_id).id, priority=priority)

    def cap(self, job_id: str, devices: int | None) -> None:
        """Limit the devices that a job may have; None lifts the limit."""
        if devices is not None and not 1 <= devices <= self.devices:
            raise ManagerError(f"a job can have at most {counted(self.devices, 'device')} here, not {devices}")
        with self.lock:
            record = self.records.unfinished(job_id)
            held = self.scheduler.held(self._job(record))
            if devices is not None and held is not None and held.types is not None and devices < held.min:
                raise ManagerError(f"job {record.id} needs at least {counted(held.min, 'device')} here, for its memory")
            self.reconciler.learn(record.id, cap=devices)

    def pause(self, job_id: str) -> None:
        """Stop a job with a checkpoint until ``resume``."""
        with self.lock:
            self.reconciler.change(self.records.unfinished(job_id).id, lifecycle.PauseRequested(self.clock()))

    def resume(self, job_id: str, from_checkpoint: str | None = None) -> None:
        """Continue a paused job: from its last checkpoint, or from the file or the step of its own that is given."""
        chosen = None
        if from_checkpoint is not None:
            with self.lock:
                folder = self.fleet.folder(self._paused(job_id).id)
            chosen = checkpoints.chosen(folder, from_checkpoint)  # reads all of it, so without the lock
        with self.lock:
            self.records.unfinished(job_id)
            if chosen is not None:
                self._go_back(self._paused(job_id), chosen)
            self.reconciler.change(job_id, lifecycle.ResumeRequested(self.clock()))

    def _paused(self, job_id: str) -> Record:
        record = self.records.unfinished(job_id)
        if record.state != JobState.PAUSED:
            raise ManagerError(f"job {record.id} is not paused: its state is {record.state}. Pause it first.")
        return record

    def _go_back(self, record: Record, checkpoint: Path) -> None:
        folder = self.fleet.folder(record.id)
        with folder.locked():
            if not checkpoint.is_file():  # another request has gone further back meanwhile
                raise ManagerError(f"{checkpoint} was just set aside. Choose again.")
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
        """Folders of jobs that have no record and do not run."""
        with self.lock:
            known = {record.id for record in self.records.all()}
        return [orphans.described(folder) for folder in orphans.unrecorded(known)]

    def take_in(self, job_id: str) -> None:
        """Make a job of an orphan again: paused, until ``resume``."""
        with self.lock:
            folder = self.fleet.folder(job_id)
            if job_id in self.records or "/" in job_id or not folder.path.is_dir():
                raise UnknownJobError(f"there is no orphan {job_id!r}. `vf cluster orphans` lists them.")
            try:
                record = orphans.adopted(folder, self.clock())
            except OSError as error:
                raise ManagerError(f"job {job_id} can't be continued: its folder is incomplete ({error})") from error
            self._take_in(record)

    @property
    def scheduler(self) -> Scheduler:
        return self._driver.scheduler

    @property
    def problems(self) -> list[str]:
        """Problems of the cluster as a whole: of its policy, and of its records."""
        texts = [self._driver.problem, self.records.problem]
        if names := ", ".join(self.records.unreadable):
            texts.append(f"the records of these jobs are damaged, and left as they are: {names}")
        return [text for text in texts if text]

    def problem_of(self, job_id: str) -> str:
        """The last error of a job whose action is tried again; empty if there is none."""
        return self._errors.last_line(job_id)

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
        """These devices are gone, or are wanted for something else: jobs continue with the others they have.

        The end of a window does not put them back.
        """
        devices = tuple(devices)
        with self.lock:
            self._take_out(devices)
            for window in self.records.windows:
                if window.device in devices and window.drained:
                    self.records.set_window(replace(window, drained=False))

    def _take_out(self, devices: Iterable[str]) -> None:
        lost = self.scheduler.placement.lost
        if gone := tuple(device for device in self._known(devices) if device not in lost):
            self.records.lose(gone)
            self._handle(DevicesLost(self._seconds(), gone))

    def plan_maintenance(self, device: str, begin: float, end: float) -> None:
        """Take a device out from shortly before *begin* until *end*, in seconds since the epoch."""
        window = Window(device, begin, end)
        with self.lock:
            window.check(self.clock())
            list(self._known([device]))
            before = (each for each in self.records.windows if (each.device, each.begin) == (device, begin))
            self.records.set_window(replace(window, drained=any(each.drained for each in before)))

    def _keep_windows(self) -> None:
        """Take out devices whose maintenance begins, and put back those whose maintenance is over."""
        now, placement, planned = self.clock(), self.scheduler.placement, self.records.windows
        for device in dict.fromkeys(window.device for window in planned):
            is_out = not placement.knows(device) or device in placement.lost
            due = due_of([window for window in planned if window.device == device], is_out, now)
            for window in due.noted:
                self.records.set_window(window)
            if due.out and not is_out:
                self._take_out([device])
            elif is_out and not due.out and placement.knows(device):
                self._put_back([device])
            self.records.drop_windows(due.over)

    def give_back(self, devices: Iterable[str]) -> None:
        """Lost devices can be used again, and no window is open or planned for them any more."""
        devices = tuple(devices)
        with self.lock:
            self.records.drop_windows(window for window in self.records.windows if window.device in devices)
            self._put_back(devices)

    def _put_back(self, devices: Iterable[str]) -> None:
        lost = self.scheduler.placement.lost
        if back := tuple(device for device in self._known(devices) if device in lost):
            self.records.give_back(back)
            self._handle(DevicesJoined(self._seconds(), back))

    def stop_jobs(self) -> None:
        """Stop all jobs with a checkpoint; they continue under the next manager."""
        with self.lock:
            self._stopping = True
            for record in self.records.running():
                self.reconciler.change(record.id, lifecycle.ShutdownRequested())

    def close(self) -> None:
        """Let go of what a process can't end without. Jobs go on, for the next manager."""
        self._notices.close()

    @property
    def has_stopped(self) -> bool:
        """Whether ``stop_jobs`` was called, and no job runs any more."""
        return self._stopping and not self.records.running()

    def state_of(self, record: Record) -> JobState:
        """The record's, in more detail while the job runs."""
        if record.state != JobState.RUNNING:
            return record.state
        status = self.fleet.status(record.id)
        state = status.state if status is not None else JobState.STARTING
        live = (JobState.STARTING, JobState.RUNNING, JobState.RESIZING)
        return state if state in live else JobState.RUNNING

    def tick(self) -> None:
        """Look at the jobs, wake the scheduler, and do what is due."""
        with self.lock:
            self.records.save_the_rest()
            now = self._seconds()
            if not self._stopping and self._driver.is_due(now):
                self._handle(Woken(now))
            healthy = self._errors.for_each(self.reconciler.look_at, [record.id for record in self.records.running()])
            running = [job_id for job_id in healthy if self.records[job_id].state == JobState.RUNNING]
            self._errors.for_each(self.reconciler.estimate, self.reconciler.due_for_estimate(running))
            self._errors.for_each(self.reconciler.direct, running)
            self._notices.look()
            self._keep_windows()
            if not self._stopping:
                following = [record.id for record in self.records.all() if self._is_to_follow(record)]
                self._errors.for_each(self.reconciler.follow, following)
                waiting = [
                    record for record in self.records.all() if record.state == JobState.QUEUED and record.devices
                ]
                self._errors.for_each(self.reconciler.launch, [record.id for record in waiting])
            if now > self._look_for_orphans_after:
                self._look_for_orphans_after = now + ORPHAN_SECONDS
                for record in self._running_orphans():
                    self._take_in(record)
            self.records.backups.make_if_due(self.clock())

    def _is_to_follow(self, record: Record) -> bool:
        is_waiting = record.state == JobState.QUEUED and record.id not in self.scheduler.jobs
        return is_waiting and bool(record.terms.after)

    def _take_over(self) -> None:
        """Take over what an earlier manager has left, without touching jobs that run."""
        devices = set(self.scheduler.placement.devices)
        if lost := self.records.lost() & devices:
            self._handle(DevicesLost(self._seconds(), tuple(sorted(lost))))
        self._errors.for_each(self._catch_up, [record.id for record in self.records.all() if not record.is_over])
        self.records.save(self._running_orphans())
        self._driver.note_arrivals(self._seconds())
        for record in self.records.running():
            self.fleet.adopt(record.id, record.devices)
            self.reconciler.change(record.id, lifecycle.ManagerReplaced())
        restored = taken_over(self.records.all(), devices - lost)
        self.records.save(
            [record for record in (*restored.running, *restored.waiting) if record != self.records[record.id]]
        )
        for record in (*restored.running, *restored.waiting):
            self.reconciler.note_speed(record)
        running = tuple((self._job(record), record.devices) for record in restored.running)
        ready = [record for record in restored.waiting if not Dependencies.of(record, self.records).awaited]
        waiting, attained = tuple(map(self._job, ready)), self.records.attained(self.clock())
        self._handle(JobsRestored(self._seconds(), running, waiting, attained))

    def _catch_up(self, job_id: str) -> None:
        record = self.records[job_id]
        if record.state == JobState.RUNNING:
            return  # what has become of it is seen at the first look
        if facts := orphans.caught_up(record, self.fleet.folder(job_id), self.clock()):
            _log.warning("job %s is %s, though its record says %s: that is older", job_id, facts["state"], record.state)
            self.records.update(job_id, **facts)

    def _running_orphans(self) -> list[Record]:
        return self._orphans.find({record.id for record in self.records.all()}, self.clock())

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
        self.reconciler.enter(record)

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
        raise RecordsError(
            f"the disk of {home()} is full: {free >> 20} MB are left. Running jobs continue; submits are "
            f"refused until there is space."
        )
