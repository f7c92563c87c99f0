"""The service that owns a cluster of jobs: the scheduler on the wall clock, and a coordinator for each running job.

The scheduler's actions are written down as what each job *should* have. ``tick`` compares that with what it *has*, as
its folder tells, and does what leads from one to the other: launch, move, stop. Nothing else is remembered between
two ticks, so that a manager that was killed goes on where another one stopped, and jobs that run meanwhile are left
alone.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import sys
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
from virtualflow.errors import DamagedError, LaunchError, LedgerError, ManagerError, UnknownJobError, VirtualFlowError
from virtualflow.job import launch
from virtualflow.job.folder import JobSpec
from virtualflow.job.history import Watch
from virtualflow.manager import description, environment, orphans
from virtualflow.manager import fleet as fleets
from virtualflow.manager.books import Books
from virtualflow.manager.description import UNKNOWN_SECONDS, Cluster
from virtualflow.manager.fleet import End, Fleet, Surroundings
from virtualflow.manager.records import Ledger, Record
from virtualflow.manager.scheduling import Brain
from virtualflow.manager.submission import Submission, check_priority
from virtualflow.system.clock import Steady
from virtualflow.system.home import home, new_job_id

MOST_CRASHES = 5  # of a job's coordinator, in a row, without a step between them
ESTIMATE_SECONDS = 5.0  # between two looks at how long a job will take
SCALE = 1.1  # an estimate that changes by less is not worth a decision
LEAST_FREE_BYTES = 32 << 20  # on disk, for a submit
STRAY_SECONDS = 10.0  # between two looks for jobs that run and are not known
BACKUP_SECONDS = 60.0  # between two looks whether the records are to be copied
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Manager:
    """Its public methods may be called from any thread."""

    def __init__(
        self, cluster: Cluster, policy: Policy, ledger: Ledger, clock: Callable[[], float] = time.time
    ) -> None:
        self.cluster = cluster
        self.policy = policy
        self.started = clock()
        self.books = Books(ledger)
        self.fleet = Fleet(cluster.patience_seconds, tell)
        self.machines = dict(cluster.machines)
        self.lock = threading.RLock()
        self._clock = clock  # what is written down for people
        self._seconds = Steady(clock)  # what the scheduler goes by
        self._brain = Brain(cluster, policy, self.books, self._done, tell)
        self._handle, self._job = self._brain.handle, self._brain.job
        self._estimated_at: dict[str, float] = {}
        self._troubles: dict[str, str] = {}  # by job: what was last told of it
        self._not_mine: set[str] = set()  # folders of jobs that ``vf run`` has started
        self._strays_after = self._backup_after = 0.0
        self._backing_up: threading.Thread | None = None
        self._stopping = False
        self._find_jobs()

    def submit(self, submission: Submission) -> str:
        """Take a job in; once this returns, it is never lost."""
        submission.check(self.devices)
        with self.lock:
            record = submission.record(self._new_id(), self._clock())
            folder = self.fleet.folder(record.id)
            try:
                _check_disk()
                folder.make(exist_ok=False)
            except OSError as error:
                raise _not_taken(error) from error
            try:
                description.write_folder(folder, record, self._spec(record, ()), submission.modules)
                self.books.add(record)
            except (OSError, ValueError, VirtualFlowError) as error:
                shutil.rmtree(folder.path, ignore_errors=True)  # made a moment ago, by this very call
                raise _not_taken(error) from error
            self._arrives(record)
        return record.id

    def set_priority(self, job_id: str, priority: float) -> None:
        check_priority(priority)
        with self.lock:
            self._learn(self.books.unfinished(job_id), priority=priority)

    def cap(self, job_id: str, devices: int | None) -> None:
        """Let a job have at most so many devices; None lifts that."""
        if devices is not None and not 1 <= devices <= self.devices:
            raise ManagerError(f"a job can have 1 to {self.devices} device(s) here, not {devices}")
        with self.lock:
            self._learn(self.books.unfinished(job_id), cap=devices)

    def pause(self, job_id: str) -> None:
        """Stop a job with a checkpoint until ``resume``."""
        with self.lock:
            record = self.books.unfinished(job_id)
            if record.state == "PAUSED" or record.wish == "pause":
                return
            self._withdraw(record)
            if record.state == "QUEUED":
                self._rest(record, "PAUSED")
            else:
                self.books.update(record, wish="pause")

    def resume(self, job_id: str) -> None:
        with self.lock:
            record = self.books.unfinished(job_id)
            if record.wish == "pause":
                self.books.update(record, wish="suspend")  # it is about to stop, and then goes on
            elif record.state == "PAUSED":
                record.trouble = None
                self._rest(record, "QUEUED")
            else:
                raise ManagerError(f"job {job_id} is not paused: its state is {self.state_of(record)}")
            self._handle(JobArrived(self._seconds(), self._job(record)))

    def cancel(self, job_id: str) -> None:
        """End a job for good."""
        with self.lock:
            record = self.books.unfinished(job_id)
            self._withdraw(record)
            if record.state == "RUNNING":
                self.books.update(record, wish="cancel")
            else:
                self._over(record, "CANCELLED")

    def orphans(self) -> list[dict[str, Any]]:
        """Folders of jobs that nobody has a record of, and that do not run."""
        with self.lock:
            known = {record.id for record in self.books.all()}
        return [orphans.described(folder) for folder in orphans.strays(known)]

    def take_in(self, job_id: str) -> None:
        """Make a job of an orphan again: paused, until ``resume``."""
        with self.lock:
            folder = self.fleet.folder(job_id)
            if job_id in self.books or "/" in job_id or not folder.path.is_dir():
                raise UnknownJobError(f"there is no orphan {job_id!r}. `vf cluster orphans` lists them.")
            try:
                record = orphans.adopted(folder, self._clock())
            except OSError as error:
                raise ManagerError(f"what is left of job {job_id} is not enough to go on: {error}") from error
            self._take_in(record)

    @property
    def scheduler(self) -> Scheduler:
        return self._brain.scheduler

    @property
    def troubles(self) -> list[str]:
        """What those who look should know, beside what there is to know of each job."""
        told = [self._brain.trouble, self.books.trouble]
        if names := ", ".join(self.books.unreadable):
            told.append(f"the records of these jobs are damaged, and left as they are: {names}")
        return [each for each in told if each]

    def trouble_of(self, job_id: str) -> str:
        """What goes wrong with a job, and is tried again."""
        return (self._troubles.get(job_id, "").strip().splitlines() or [""])[-1]

    @property
    def devices(self) -> int:
        """All that the cluster has, or has had."""
        return len(self.scheduler.placement.devices)

    def hear(self, news: Iterable[DevicesLost | DevicesJoined], machines: Mapping[str, str]) -> None:
        """Machines have come or gone; *machines* has the devices that are there now."""
        with self.lock:
            self.machines.update(machines)
            for event in news:
                self._handle(replace(event, seconds=self._seconds()))

    def lose(self, devices: Iterable[str]) -> None:
        """These devices are gone, or are wanted for something else: jobs go on with the others they have."""
        with self.lock:
            lost = self.scheduler.placement.lost
            if gone := tuple(device for device in self._known(devices) if device not in lost):
                self.books.lose(gone)
                self._handle(DevicesLost(self._seconds(), gone))

    def give_back(self, devices: Iterable[str]) -> None:
        """Lost devices are there again."""
        with self.lock:
            lost = self.scheduler.placement.lost
            if back := tuple(device for device in self._known(devices) if device in lost):
                self.books.give_back(back)
                self._handle(DevicesJoined(self._seconds(), back))

    def stop_jobs(self) -> None:
        """Stop all jobs with a checkpoint; they go on when a manager is there again."""
        with self.lock:
            self._stopping = True
            for record in self.books.running():
                if record.wish is None:
                    self.books.update(record, wish="down")

    @property
    def has_stopped(self) -> bool:
        """Whether it was told to stop, and no job runs any more."""
        return self._stopping and not self.books.running()

    def state_of(self, record: Record) -> str:
        if record.state != "RUNNING":
            return record.state
        state = str(self.fleet.state(record.id).get("state", "STARTING"))
        return state if state in ("STARTING", "RUNNING", "RESIZING") else "RUNNING"

    def tick(self) -> None:
        """Look at the jobs, hear the scheduler, and do what is due."""
        with self.lock:
            self.books.save_the_rest()
            now = self._seconds()
            if not self._stopping and self._brain.is_due(now):
                self._handle(Woken(now))
            well = self._do_each(self._look_at, self.books.running())
            self._do_each(self._direct, [record for record in well if record.state == "RUNNING"])
            if not self._stopping:
                waiting = [each for each in self.books.all() if each.state == "QUEUED" and each.devices]
                self._do_each(self._launch, waiting)
            if now > self._strays_after:
                self._strays_after = now + STRAY_SECONDS
                for record in self._running_strays():
                    self._take_in(record)
            self._back_up(now)

    def _do_each(self, what: Callable[[Record], None], records: Iterable[Record]) -> list[Record]:
        """Whatever goes wrong with one job is told, tried again, and no other job's business. Return the others."""
        well = []
        for record in records:
            try:
                what(record)
                self._troubles.pop(record.id, None)
                well.append(record)
            except Exception:
                text = traceback.format_exc()
                if self._troubles.get(record.id) != text:
                    tell(f"job {record.id}:\n{text}")
                    self.books.version += 1
                self._troubles[record.id] = text
        return well

    def _back_up(self, now: float) -> None:
        """See to it that there is a copy of the records that is no older than a day. A thread makes it."""
        if now < self._backup_after or (self._backing_up is not None and self._backing_up.is_alive()):
            return
        self._backup_after = now + BACKUP_SECONDS
        if not (backups := self.books.backups).is_due(self._clock()):
            return

        def make() -> None:
            try:
                tell(f"the records were copied to {backups.make()}")
            except LedgerError as error:
                tell(str(error))

        self._backing_up = threading.Thread(target=make, name="backup", daemon=True)
        self._backing_up.start()

    def _find_jobs(self) -> None:
        """Take over what an earlier manager has left, without touching jobs that run."""
        running, waiting = [], []
        free = set(self.scheduler.placement.devices)
        if lost := self.books.lost() & free:
            self._handle(DevicesLost(self._seconds(), tuple(sorted(lost))))
            free -= lost
        had = [each for each in self.books.all() if description.recall_environment(self.fleet.folder(each.id), each)]
        self.books.save(had)
        self._do_each(self._catch_up, [record for record in self.books.all() if not record.is_over])
        for record in self._running_strays():
            self.books.add_running(record)
        self._brain.note_arrivals(self._seconds())
        for record in self.books.all():
            if record.state == "RUNNING":
                self.fleet.adopt(record.id, record.devices)
                if record.wish == "down":
                    record.wish = "suspend"  # that manager is gone, but may have told it before
            if record.is_over or record.state == "PAUSED" or record.wish in ("pause", "cancel"):
                continue
            # What is no longer there, or another's, it does not have.
            record.devices = [device for device in record.devices if device in free and record.state == "RUNNING"]
            if record.devices and record.beside is None:
                free -= set(record.devices)
                running.append((self._job(record), tuple(record.devices)))
            else:
                record.devices, record.beside = [], None
                waiting.append(self._job(record))
        self._handle(JobsFound(self._seconds(), tuple(running), tuple(waiting)))

    def _catch_up(self, record: Record) -> None:
        if record.state == "RUNNING":
            return  # what has become of it is seen at the first look
        if facts := orphans.caught_up(record, self.fleet.folder(record.id), self._clock()):
            tell(f"job {record.id} is {facts['state']}, though its record says {record.state}: that is older")
            self.books.update(record, **facts)

    def _running_strays(self) -> list[Record]:
        """Jobs of a manager's that run, and of which there is no record."""
        found = []
        known = {record.id for record in self.books.all()} | self._not_mine
        for path in sorted(set((home() / "jobs").glob("*")) - {home() / "jobs" / each for each in known}):
            folder = self.fleet.folder(path.name)
            try:
                if not orphans.is_managed(folder):
                    self._not_mine.add(path.name)
                elif folder.is_locked():
                    found.append(orphans.adopted(folder, self._clock()))
                    tell(f"job {path.name} runs, and there is no record of it: it is taken in")
            except (OSError, DamagedError) as error:
                tell(f"{path} is locked by an unknown process: {error}")
        return found

    def _take_in(self, record: Record) -> None:
        """A job that was found while this manager was at work."""
        self.books.add_running(record)
        if record.state == "RUNNING":
            self.fleet.adopt(record.id, record.devices)
            record.devices = []  # the policy says where it should be
            self._arrives(record)

    def _arrives(self, record: Record) -> None:
        self._brain.note_arrival(record, self._seconds())
        self._handle(JobArrived(self._seconds(), self._job(record)))

    def _look_at(self, record: Record) -> None:
        """See how a job that was launched is doing."""
        watch = self.fleet.watch(record.id)
        state, step, holds = self.fleet.state(record.id), watch.step, self.fleet.holds(record.id)
        if (end := self.fleet.look(record.id)) is not None:
            self._hear_of_losses(set(end.lost) - set(state.get("preempted", ())))
            self._ended(record, end)
            return
        new = self.fleet.state(record.id)
        self._hear_of_losses(set(new.get("preempted", ())) - set(state.get("preempted", ())))
        self.books.version += new != state or watch.step != step
        if self.fleet.holds(record.id) != holds:
            self.books.chart(record.id, self.fleet.holds(record.id), self._clock())
        record.resizes, record.failures = new.get("resizes", 0), new.get("failures", 0)
        nodes = new.get("virtual_nodes")
        if isinstance(nodes, int) and nodes >= 1 and nodes != record.virtual_nodes:
            self._learn(record, virtual_nodes=nodes)
        self._estimate(record, watch)

    def _hear_of_losses(self, devices: Iterable[str]) -> None:
        """Somebody has told workers to go, as one does who needs their devices."""
        there = set(self.scheduler.placement.devices) - self.scheduler.placement.lost
        if gone := tuple(sorted(there.intersection(devices))):
            self._handle(DevicesLost(self._seconds(), gone))  # not written down: before a reboot, all are told to go

    def _ended(self, record: Record, end: End) -> None:
        """The job's coordinator and workers are gone."""
        seen, heard = self.fleet.state(record.id), self.fleet.watch(record.id).last_time
        self.fleet.forget(record.id)
        # One that ended while there was no manager had its devices until it was last heard of.
        self.books.chart(record.id, (), self._clock() if seen or heard is None else heard)
        self._estimated_at.pop(record.id, None)
        text = end.text
        record.trouble = None
        if end.how == fleets.CRASHED:  # it goes on from its last checkpoint
            step = self.fleet.watch(record.id).step
            self.books.update(record, crashes=record.crashes + 1 if step <= record.last_step else 1, last_step=step)
            text = f"{text}\nIt ended {record.crashes} times in a row without getting any further."
        elif end.how == fleets.FAILED:
            self.books.update(record, failed=record.failed + 1)
        beyond_help = record.failed > record.retries if end.how == fleets.FAILED else record.crashes > MOST_CRASHES
        if end.how == fleets.DONE:
            self._over(record, "DONE")
        elif record.wish == "cancel" or (end.how == fleets.STOPPED and record.wish is None):
            self._over(record, "CANCELLED")
        elif end.how == fleets.UNCLEAR:  # perhaps it was done: somebody has to look
            record.trouble = f"{text}. `vf resume {record.id}` lets it go on from its last checkpoint"
            self._withdraw(record)
            self._rest(record, "PAUSED")
        elif end.how != fleets.STOPPED and beyond_help:
            record.failure = text.strip()
            self._over(record, "FAILED")
        else:
            self._rest(record, "PAUSED" if record.wish == "pause" else "QUEUED")

    def _rest(self, record: Record, state: str) -> None:
        """It does not run, and is not over. The scheduler knows why, or still counts on it."""
        self.books.update(record, state=state, wish=None, run_seconds=self.run_seconds(record), launched=None)
        description.write_state(self.fleet.folder(record.id), record)

    def _over(self, record: Record, state: str) -> None:
        facts: dict[str, Any] = {"run_seconds": self.run_seconds(record), "launched": None, "wish": None}
        description.forget_environment(self.fleet.folder(record.id), record)
        self.books.update(record, state=state, ended=self._clock(), devices=[], **facts)
        description.write_state(self.fleet.folder(record.id), record)
        self._withdraw(record)

    def run_seconds(self, record: Record) -> float:
        """How long it has run so far."""
        return record.run_seconds + (max(0.0, self._clock() - record.launched) if record.launched is not None else 0.0)

    def _launch(self, record: Record) -> None:
        """Start the job on those of its devices that nobody is on any more."""
        devices = self._free_for(record)
        if len(devices) < min(record.least, len(record.devices)):
            return
        if record.virtual_nodes is None:
            devices = devices[: record.least]  # on how many it can run is known when it has made its Trainer
        token = self.fleet.prepare(record.id, self._spec(record, devices))
        now = self._clock()
        if token is None:  # a coordinator that another manager has started has come after all
            self.fleet.adopt(record.id, record.devices)
            self.books.update(record, state="RUNNING", started=record.started or now, launched=now)
            return
        self.books.chart(record.id, devices, self._clock())
        # Written before the start: whoever finds this looks for the launch, and for the lock.
        times = {"started": record.started or now, "launched": now}
        self.books.update(record, state="RUNNING", token=token, launches=record.launches + 1, **times)
        if not self.books.is_saved(record):  # nothing starts without a trace
            launch.withdraw(self.fleet.folder(record.id))
            self.fleet.forget(record.id)
            self.books.chart(record.id, (), self._clock())
            self.books.update(record, state="QUEUED", launched=None)
            return
        directory = record.directory if Path(record.directory).is_dir() else str(self.fleet.folder(record.id).path)
        try:
            kept = environment.kept(self.fleet.folder(record.id).path)
            where = Surroundings(record.interpreter, directory, {**kept, **self.cluster.environment})
            self.fleet.start(record.id, token, where)
        except (OSError, ValueError, LaunchError) as error:
            launch.withdraw(self.fleet.folder(record.id))
            self._ended(record, End(fleets.FAILED, f"{record.interpreter} can't be started: {error}"))

    def _direct(self, record: Record) -> None:
        """Tell a running job where it should be, or that it should stop."""
        if not record.devices and record.wish is None:
            self.books.update(record, wish="suspend")
        devices = self._free_for(record)
        if record.wish is None and not devices and self._is_in_the_way(record):
            self.books.update(record, wish="suspend")  # two jobs that change places would wait for each other
        if record.wish is not None:
            self.fleet.stop(record.id, checkpoint=record.wish != "cancel")
        elif record.virtual_nodes is not None and devices:
            self.fleet.move(record.id, devices)

    def _is_in_the_way(self, record: Record) -> bool:
        """Whether others are to have what it is on."""
        holds = set(self.fleet.holds(record.id))
        return any(holds & set(other.devices) for other in self.books.all() if other is not record)

    def _free_for(self, record: Record) -> tuple[str, ...]:
        """Those of a job's devices that no other job is on; the ones it is on come first."""
        state = self.scheduler.jobs.get(record.id)
        taken = self.fleet.taken({record.id, record.beside, *(state.guests if state is not None else ())})
        mine = self.fleet.holds(record.id)
        wanted = sorted((device for device in record.devices if device not in taken), key=lambda d: d not in mine)
        return tuple(wanted[: record.wants])

    def _estimate(self, record: Record, watch: Watch) -> None:
        """What a job will take is learnt as it runs, and policies that care hear of it."""
        now = self._seconds()
        if now - self._estimated_at.get(record.id, 0.0) < ESTIMATE_SECONDS:
            return
        self._estimated_at[record.id] = now
        if watch.steps is None or watch.step_seconds is None or not watch.devices:
            return
        # On its full demand, if twice the devices are twice as fast.
        seconds = max(1.0, watch.steps * watch.step_seconds * watch.devices / record.wants)
        known = record.expect_seconds or UNKNOWN_SECONDS
        if not known / SCALE < seconds < known * SCALE:
            self._learn(record, expect_seconds=seconds)

    def _done(self, record: Record) -> float:
        """Seconds of its expected time that a job has behind it."""
        watch = self.fleet.watch(record.id) if record.started is not None else None
        if watch is None or not watch.steps:
            return 0.0
        return (record.expect_seconds or UNKNOWN_SECONDS) * min(1.0, watch.step / watch.steps)

    def _learn(self, record: Record, **facts: Any) -> None:
        before = self._job(record)
        self.books.update(record, **facts)
        after = self._job(record)
        if after != before and record.id in self.scheduler.jobs:
            self._handle(JobChanged(self._seconds(), after))

    def _withdraw(self, record: Record) -> None:
        """The scheduler no longer counts on a job."""
        record.devices, record.beside = [], None
        if record.id in self.scheduler.jobs:
            self._handle(JobEnded(self._seconds(), record.id))

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
        while (job_id := new_job_id()) in self.books or self.fleet.folder(job_id).path.exists():
            pass
        return job_id


def tell(text: str) -> None:
    """For the manager's log, if the disk has room for that."""
    with contextlib.suppress(OSError):
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _not_taken(error: Exception) -> VirtualFlowError:
    lacks_room = isinstance(error, LedgerError) or getattr(error, "errno", None) in NO_ROOM
    return (LedgerError if lacks_room else ManagerError)(f"the job was not taken in: {error}")


def _check_disk() -> None:
    free = shutil.disk_usage(home()).free
    if free < LEAST_FREE_BYTES:
        raise LedgerError(f"the disk of {home()} is full: {free >> 20} MB are left. Jobs go on; submits must wait.")
