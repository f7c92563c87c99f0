"""The service that owns a cluster of jobs: the scheduler on the wall clock, and a coordinator for each running job.

The scheduler's actions are written down as what each job *should* have. ``tick`` compares that with what it *has*, as
its folder tells, and does what leads from one to the other: launch, move, stop. Nothing else is remembered between
two ticks, so that a manager that was killed goes on where another one stopped, and jobs that run meanwhile are left
alone.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from virtualflow.cluster.job import Job
from virtualflow.cluster.messages import (
    Action,
    DevicesJoined,
    DevicesLost,
    Event,
    JobArrived,
    JobChanged,
    JobEnded,
    JobsFound,
    Progress,
    Resize,
    Start,
    WakeAt,
    Woken,
)
from virtualflow.cluster.policies.base import Policy
from virtualflow.cluster.scheduler import Scheduler
from virtualflow.cluster.throughput import Profiled
from virtualflow.core.membership import home, new_job_id
from virtualflow.errors import LedgerError, ManagerError, VirtualFlowError
from virtualflow.runtime import description, launch
from virtualflow.runtime import fleet as fleets
from virtualflow.runtime.books import Books
from virtualflow.runtime.description import UNKNOWN_SECONDS, Cluster
from virtualflow.runtime.fleet import End, Fleet, Surroundings
from virtualflow.runtime.folder import JobSpec, all_jobs
from virtualflow.runtime.ledger import Ledger, Record
from virtualflow.runtime.submission import Submission, check_priority
from virtualflow.runtime.watch import Watch

MOST_CRASHES = 5  # of a job's coordinator, in a row, without a step between them
ESTIMATE_SECONDS = 5.0  # between two looks at how long a job will take
START_SECONDS = 5.7  # from a job's start to its first step, as measured: docs/performance.md
SCALE = 1.1  # an estimate that changes by less is not worth a decision
LEAST_FREE_BYTES = 32 << 20  # on disk, for a submit
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Manager:
    """Its public methods may be called from any thread."""

    def __init__(
        self, cluster: Cluster, policy: Policy, ledger: Ledger, clock: Callable[[], float] = time.time
    ) -> None:
        self.cluster = cluster
        self.policy = policy
        self.started = clock()
        self.scheduler = Scheduler(cluster.pools, policy, Profiled(), start_seconds=START_SECONDS)
        self.books = Books(ledger)
        self.fleet = Fleet()
        self.machines = dict(cluster.machines)
        self.lock = threading.RLock()
        self._clock = clock
        self._now = 0.0
        self._wakes: list[float] = []
        self._estimated_at: dict[str, float] = {}
        self._troubles: dict[str, str] = {}  # by job: what was last told of it
        self._stopping = False
        self._find_jobs()

    def submit(self, submission: Submission) -> str:
        """Take a job in; once this returns, it is never lost."""
        submission.check(self.devices)
        with self.lock:
            _check_disk()
            record = submission.record(self._new_id(), self._seconds())
            folder = self.fleet.folder(record.id)
            try:
                description.write_folder(folder, record, self._spec(record, ()), submission.modules)
                self.books.add(record)
            except (OSError, ValueError, VirtualFlowError) as error:
                shutil.rmtree(folder.path, ignore_errors=True)
                lacks_room = isinstance(error, LedgerError) or getattr(error, "errno", None) in NO_ROOM
                kind = LedgerError if lacks_room else ManagerError
                raise kind(f"the job was not taken in: {error}") from error
            self._handle(JobArrived(self._seconds(), self._job(record)))
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
            if self._wakes and self._wakes[0] <= now and not self._stopping:
                while self._wakes and self._wakes[0] <= now:
                    heapq.heappop(self._wakes)
                self._handle(Woken(now))
            self._do_each(self._look_at, self.books.running())
            self._do_each(self._direct, self.books.running())
            if not self._stopping:
                waiting = [each for each in self.books.all() if each.state == "QUEUED" and each.devices]
                self._do_each(self._launch, waiting)

    def _do_each(self, what: Callable[[Record], None], records: Iterable[Record]) -> None:
        """Whatever goes wrong with one job is told, tried again, and no other job's business."""
        for record in records:
            try:
                what(record)
                self._troubles.pop(record.id, None)
            except Exception:
                text = traceback.format_exc()
                if self._troubles.get(record.id) != text:
                    tell(f"job {record.id}:\n{text}")
                self._troubles[record.id] = text

    def _find_jobs(self) -> None:
        """Take over what an earlier manager has left, without touching jobs that run."""
        running, waiting = [], []
        free = set(self.scheduler.placement.devices)
        if lost := self.books.lost() & free:
            self._handle(DevicesLost(self._seconds(), tuple(sorted(lost))))
            free -= lost
        for record in self.books.all():
            if record.state == "RUNNING":
                self.fleet.adopt(record.id)
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
        for folder in all_jobs():
            with contextlib.suppress(TypeError, ValueError):  # written by another version
                if folder.path.name not in self.books and folder.spec().managed:
                    shutil.rmtree(folder.path)  # its submit was never answered

    def _seconds(self) -> float:
        """The time; it never runs backwards, whatever is done to the machine's clock."""
        self._now = max(self._now, self._clock())
        return self._now

    def _handle(self, event: Event) -> None:
        if self.policy.needs_progress:
            done = {job_id: self._done(self.books[job_id]) for job_id in self.scheduler.jobs}
            self.scheduler.handle(Progress(event.seconds, done))
        changed = [record for action in self.scheduler.handle(event) if (record := self._note(action)) is not None]
        self.books.save(changed)  # together: no two jobs are ever found to have the same device

    def _note(self, action: Action) -> Record | None:
        """Take down what a job should have; ``tick`` sees to it."""
        if isinstance(action, WakeAt):
            heapq.heappush(self._wakes, action.seconds)
            return None
        record = self.books[action.job_id]
        given = action if isinstance(action, Start | Resize) else None
        record.devices = list(given.devices) if given is not None else []
        record.beside = given.host if given is not None else None
        return record

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
            self.books.chart(record.id, self.fleet.holds(record.id), self._seconds())
        record.resizes, record.failures = new.get("resizes", 0), new.get("failures", 0)
        nodes = new.get("virtual_nodes")
        if nodes is not None and nodes != record.virtual_nodes:
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
        self.books.chart(record.id, (), self._seconds() if seen or heard is None else heard)
        self._estimated_at.pop(record.id, None)
        text = end.text
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
        self.books.update(record, state=state, ended=self._seconds(), devices=[], **facts)
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
        now = self._seconds()
        if token is None:  # a coordinator that another manager has started has come after all
            self.fleet.adopt(record.id)
            self.books.update(record, state="RUNNING", started=record.started or now, launched=now)
            return
        self.books.chart(record.id, devices, self._seconds())
        # Written before the start: whoever finds this looks for the launch, and for the lock.
        times = {"started": record.started or now, "launched": now}
        self.books.update(record, state="RUNNING", token=token, launches=record.launches + 1, **times)
        if not self.books.is_saved(record):  # nothing starts without a trace
            launch.withdraw(self.fleet.folder(record.id))
            self.fleet.forget(record.id)
            self.books.chart(record.id, (), self._seconds())
            self.books.update(record, state="QUEUED", launched=None)
            return
        directory = record.directory if Path(record.directory).is_dir() else str(self.fleet.folder(record.id).path)
        environment = {**record.environment, **self.cluster.environment}
        try:
            self.fleet.start(record.id, token, Surroundings(record.interpreter, directory, environment))
        except (OSError, ValueError) as error:
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

    def _job(self, record: Record) -> Job:
        return description.for_scheduler(record, self.devices)

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
        print(text, file=sys.stderr, flush=True)


def _check_disk() -> None:
    free = shutil.disk_usage(home()).free
    if free < LEAST_FREE_BYTES:
        raise LedgerError(f"the disk of {home()} is full: {free >> 20} MB are left. Jobs go on; submits must wait.")
