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
    JobChanged,
    JobEnded,
    JobsFound,
    Woken,
)
from virtualflow.cluster.policies.base import Policy
from virtualflow.cluster.scheduler import Scheduler
from virtualflow.core.job_state import JobState
from virtualflow.errors import (
    DamagedError,
    LaunchError,
    ManagerError,
    RecordsError,
    UnknownJobError,
    VirtualFlowError,
)
from virtualflow.job import launch
from virtualflow.job.folder import JobSpec
from virtualflow.manager import description, environment, estimates, lifecycle, orphans
from virtualflow.manager.description import Cluster
from virtualflow.manager.fleet import End, Fleet, Launcher, Origin
from virtualflow.manager.lifecycle import Effect, HowEnded
from virtualflow.manager.record import Record, Wish
from virtualflow.manager.records import Records
from virtualflow.manager.scheduling import Brain
from virtualflow.manager.submission import Submission, check_priority
from virtualflow.manager.takeover import taken_over
from virtualflow.system.clock import Steady
from virtualflow.system.home import home, new_job_id

ESTIMATE_SECONDS = 5.0  # between two looks at how long a job will take
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
        self.machines = dict(cluster.machines)
        self.lock = threading.RLock()
        self._seconds = Steady(clock)  # what the scheduler goes by
        self._brain = Brain(cluster, policy, self.records, self._done_seconds)
        self._handle, self._job = self._brain.handle, self._brain.job
        self._estimated_at: dict[str, float] = {}
        self._problems: dict[str, str] = {}  # by job: what was last logged of it
        self._not_mine: set[str] = set()  # folders of jobs that ``vf run`` has started
        self._strays_after = 0.0
        self._stopping = False
        self._take_over()

    def submit(self, submission: Submission) -> str:
        """Take a job in; once this returns, it is never lost."""
        submission.check(self.devices)
        with self.lock:
            record = submission.record(self._new_id(), self.clock())
            folder = self.fleet.folder(record.id)
            try:
                _check_disk()
                folder.make(exist_ok=False)
            except OSError as error:
                raise _not_taken(error) from error
            try:
                description.write_folder(folder, record, self._spec(record, ()), submission)
                self.records.add(record)
            except (OSError, ValueError, VirtualFlowError) as error:
                shutil.rmtree(folder.path, ignore_errors=True)  # made a moment ago, by this very call
                raise _not_taken(error) from error
            self._arrives(record)
        return record.id

    def set_priority(self, job_id: str, priority: float) -> None:
        check_priority(priority)
        with self.lock:
            self._learn(self.records.unfinished(job_id).id, priority=priority)

    def cap(self, job_id: str, devices: int | None) -> None:
        """Let a job have at most so many devices; None lifts that."""
        if devices is not None and not 1 <= devices <= self.devices:
            raise ManagerError(f"a job can have 1 to {self.devices} device(s) here, not {devices}")
        with self.lock:
            self._learn(self.records.unfinished(job_id).id, cap=devices)

    def pause(self, job_id: str) -> None:
        """Stop a job with a checkpoint until ``resume``."""
        with self.lock:
            self._change(self.records.unfinished(job_id).id, lifecycle.PauseRequested(self.clock()))

    def resume(self, job_id: str) -> None:
        with self.lock:
            self._change(self.records.unfinished(job_id).id, lifecycle.ResumeRequested(self.clock()))

    def cancel(self, job_id: str) -> None:
        """End a job for good."""
        with self.lock:
            self._change(self.records.unfinished(job_id).id, lifecycle.CancelRequested(self.clock()))

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
        return self._brain.scheduler

    @property
    def problems(self) -> list[str]:
        """What those who look should know, beside what there is to know of each job."""
        found = [self._brain.problem, self.records.problem]
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
            self.machines.update(machines)
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
                self._change(record.id, lifecycle.ShutdownRequested())

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
            if not self._stopping and self._brain.is_due(now):
                self._handle(Woken(now))
            well = self._for_each(self._look_at, [record.id for record in self.records.running()])
            self._for_each(self._direct, [each for each in well if self.records[each].state == JobState.RUNNING])
            if not self._stopping:
                waiting = [each for each in self.records.all() if each.state == JobState.QUEUED and each.devices]
                self._for_each(self._launch, [record.id for record in waiting])
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

    def _change(self, job_id: str, event: lifecycle.Event) -> None:
        """Save the record as it is after *event*, and then do what follows from it."""
        before = self.records[job_id]
        record, effects = lifecycle.after(before, event)
        if record != before:
            self.records.save([record])
        folder = self.fleet.folder(job_id)
        for effect in effects:
            if effect == Effect.WRITE_STATE:
                description.write_state(folder, record)
            elif effect == Effect.ERASE_VARIABLES:
                environment.erase(folder.path)
            elif effect == Effect.ENTER_SCHEDULER:
                self._handle(JobArrived(self._seconds(), self._job(record)))
            elif effect == Effect.LEAVE_SCHEDULER and job_id in self.scheduler.jobs:
                self._handle(JobEnded(self._seconds(), job_id))

    def _take_over(self) -> None:
        """Go on with what an earlier manager has left, without touching jobs that run."""
        devices = set(self.scheduler.placement.devices)
        if lost := self.records.lost() & devices:
            self._handle(DevicesLost(self._seconds(), tuple(sorted(lost))))
        self._for_each(self._catch_up, [record.id for record in self.records.all() if not record.is_over])
        self.records.save(self._running_strays())
        self._brain.note_arrivals(self._seconds())
        for record in self.records.running():
            self.fleet.adopt(record.id, record.devices)
            self._change(record.id, lifecycle.ManagerReplaced())
        found = taken_over(self.records.all(), devices - lost)
        self.records.save([each for each in (*found.running, *found.waiting) if each != self.records[each.id]])
        running = tuple((self._job(record), record.devices) for record in found.running)
        self._handle(JobsFound(self._seconds(), running, tuple(map(self._job, found.waiting))))

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
                _log.error("%s is locked, and nobody knows by what: %s", path, error)
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
        self._brain.note_arrival(record, self._seconds())
        self._handle(JobArrived(self._seconds(), self._job(record)))

    def _look_at(self, job_id: str) -> None:
        """See how a job that was launched is doing."""
        watch = self.fleet.watch(job_id)
        before, step, held = self.fleet.state(job_id), watch.step, self.fleet.holds(job_id)
        if (end := self.fleet.look(job_id)) is not None:
            self._lose_preempted(set(end.lost) - set(before.get("preempted", ())))
            self._end(job_id, end)
            return
        state = self.fleet.state(job_id)
        self._lose_preempted(set(state.get("preempted", ())) - set(before.get("preempted", ())))
        self.records.version += state != before or watch.step != step
        if (holds := self.fleet.holds(job_id)) != held:
            self.records.note_devices(job_id, holds, self.clock())
        record = self.records.update(job_id, resizes=state.get("resizes", 0), failures=state.get("failures", 0))
        nodes = state.get("virtual_nodes")
        if isinstance(nodes, int) and nodes >= 1 and nodes != record.virtual_nodes:
            self._learn(job_id, virtual_nodes=nodes)
        self._estimate(job_id)

    def _lose_preempted(self, devices: Iterable[str]) -> None:
        """Somebody has ended workers with a signal, as one does who needs their devices."""
        usable = set(self.scheduler.placement.devices) - self.scheduler.placement.lost
        if gone := tuple(sorted(usable.intersection(devices))):
            self._handle(DevicesLost(self._seconds(), gone))  # not saved: before a reboot, all workers are ended

    def _end(self, job_id: str, end: End) -> None:
        """The job's coordinator and workers are gone."""
        watch, has_been_seen, now = self.fleet.watch(job_id), bool(self.fleet.state(job_id)), self.clock()
        self.fleet.forget(job_id)
        # One that ended while there was no manager had its devices until its last event.
        until = now if has_been_seen or watch.last_time is None else watch.last_time
        self.records.note_devices(job_id, (), until)
        self._estimated_at.pop(job_id, None)
        self._change(job_id, lifecycle.Ended(end.how, now, watch.step, end.text))

    def run_seconds(self, record: Record) -> float:
        """How long it has run so far."""
        return lifecycle.run_seconds(record, self.clock())

    def _launch(self, job_id: str) -> None:
        """Start the job on those of its devices that nobody is on any more."""
        record = self.records[job_id]
        devices = self._free_for(record)
        if len(devices) < min(record.min_devices, len(record.devices)):
            return
        if record.virtual_nodes is None:
            devices = devices[: record.min_devices]  # on how many it can run is known when it has made its Trainer
        token = self.fleet.prepare(job_id, self._spec(record, devices))
        if token is None:  # a coordinator that another manager has started has come after all
            self.fleet.adopt(job_id, record.devices)
            self._change(job_id, lifecycle.CoordinatorFound(self.clock()))
            return
        self.records.note_devices(job_id, devices, self.clock())
        # Saved before the start: whoever finds this looks for the launch, and for the lock.
        self._change(job_id, lifecycle.Launched(token, self.clock()))
        if not self.records.is_saved(job_id):  # nothing starts without a trace
            launch.withdraw(self.fleet.folder(job_id))
            self.fleet.forget(job_id)
            self.records.note_devices(job_id, (), self.clock())
            self.records.save([record])
            return
        folder = self.fleet.folder(job_id).path
        try:
            variables = {**environment.kept(folder), **self.cluster.environment}
            directory = record.directory if Path(record.directory).is_dir() else str(folder)
            self.fleet.start(job_id, token, Origin(record.interpreter, directory, variables))
        except (OSError, ValueError, LaunchError) as error:
            launch.withdraw(self.fleet.folder(job_id))
            self._end(job_id, End(HowEnded.FAILED, f"{record.interpreter} can't be started: {error}"))

    def _direct(self, job_id: str) -> None:
        """Send a running job where it should be, or stop it."""
        record = self.records[job_id]
        devices = self._free_for(record)
        # Two jobs that change places would wait for each other.
        if not record.devices or (not devices and self._is_in_the_way(record)):
            self._change(job_id, lifecycle.DevicesWithdrawn())
            record = self.records[job_id]
        if record.wish is not None:
            self.fleet.stop(job_id, checkpoint=record.wish != Wish.CANCEL)
        elif record.virtual_nodes is not None and devices:
            self.fleet.move(job_id, devices)

    def _is_in_the_way(self, record: Record) -> bool:
        """Whether others are to have what it is on."""
        holds = set(self.fleet.holds(record.id))
        return any(holds & set(other.devices) for other in self.records.all() if other.id != record.id)

    def _free_for(self, record: Record) -> tuple[str, ...]:
        """Those of a job's devices that no other job is on; the ones it is on come first."""
        state = self.scheduler.jobs.get(record.id)
        taken = self.fleet.taken({record.id, record.beside, *(state.guests if state is not None else ())})
        mine = self.fleet.holds(record.id)
        usable = sorted((device for device in record.devices if device not in taken), key=lambda d: d not in mine)
        return tuple(usable[: record.max_devices])

    def _estimate(self, job_id: str) -> None:
        now = self._seconds()
        if now - self._estimated_at.get(job_id, 0.0) < ESTIMATE_SECONDS:
            return
        self._estimated_at[job_id] = now
        seconds = estimates.new_estimate(self.records[job_id], self.fleet.watch(job_id))
        if seconds is not None:
            self._learn(job_id, expect_seconds=seconds)

    def _done_seconds(self, record: Record) -> float:
        return estimates.done_seconds(record, self.fleet.watch(record.id) if record.started is not None else None)

    def _learn(self, job_id: str, **facts: Any) -> None:
        before = self._job(self.records[job_id])
        after = self._job(self.records.update(job_id, **facts))
        if after != before and job_id in self.scheduler.jobs:
            self._handle(JobChanged(self._seconds(), after))

    def _known(self, devices: Iterable[str]) -> Iterable[str]:
        for device in devices:
            if not self.scheduler.placement.knows(device):
                raise ManagerError(f"there is no device {device!r}. `vf devices` lists them.")
            yield device

    def _spec(self, record: Record, devices: tuple[str, ...]) -> JobSpec:
        return description.for_coordinator(
            record, devices, self.cluster, self.scheduler.placement.devices, self.machines
        )

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
