"""What a manager does to one job at a time: compare what it should have with what it has, and lead it from one to the
other. Knows no lock and no other job's trouble."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from virtualflow.cluster.messages import DevicesLost, JobArrived, JobChanged, JobEnded
from virtualflow.cluster.policies.base import Policy
from virtualflow.errors import LaunchError, VirtualFlowError
from virtualflow.job import launch
from virtualflow.job.folder import JobSpec
from virtualflow.job.status import JobStatus
from virtualflow.manager import description, environment, estimates, lifecycle
from virtualflow.manager.dependencies import Dependencies
from virtualflow.manager.description import Cluster
from virtualflow.manager.estimates import EstimateTurns
from virtualflow.manager.fleet import End, Fleet, Origin
from virtualflow.manager.job_speeds import JobSpeeds
from virtualflow.manager.lifecycle import Effect, HowEnded
from virtualflow.manager.record import Record, Wish
from virtualflow.manager.records import Records
from virtualflow.manager.scheduling import SchedulerDriver
from virtualflow.solver import profile_files
from virtualflow.system.home import profiles_of

_log = logging.getLogger(__name__)


class Reconciler:
    """*clock* is people's, and *seconds* the scheduler's."""

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        records: Records,
        fleet: Fleet,
        clock: Callable[[], float],
        seconds: Callable[[], float],
    ) -> None:
        self.driver = SchedulerDriver(cluster, policy, records, self.done_seconds)
        self.speeds = JobSpeeds(self.driver.learnt, records, fleet.watch)
        self.machines = dict(cluster.machines)
        self.pauses_ms: list[float] = []  # of all jobs, as they happen
        self._cluster = cluster
        self._records = records
        self._fleet = fleet
        self._clock = clock
        self._seconds = seconds
        self._pauses_seen: dict[str, int] = {}
        self._turns = EstimateTurns()

    def change(self, job_id: str, event: lifecycle.LifecycleEvent) -> None:
        """Save the record as it is after *event*, and then do what follows from it."""
        before = self._records[job_id]
        record, effects = lifecycle.after(before, event)
        if record != before:
            self._records.save([record])
        folder = self._fleet.folder(job_id)
        for effect in effects:
            if effect == Effect.WRITE_STATE:
                description.write_state(folder, record)
            elif effect == Effect.ERASE_VARIABLES:
                environment.erase(folder.path)
            elif effect == Effect.ENTER_SCHEDULER:
                self.enter(record)
            elif effect == Effect.LEAVE_SCHEDULER and job_id in self.driver.scheduler.jobs:
                self.driver.handle(JobEnded(self._seconds(), job_id))
                self.speeds.forget(job_id)

    def enter(self, record: Record) -> None:
        """Let the scheduler know of a job, unless it has to wait for others first."""
        if not Dependencies.of(record, self._records).awaited:
            self.note_speed(record)
            self.driver.handle(JobArrived(self._seconds(), self.driver.job(record)))

    def follow(self, job_id: str) -> None:
        """Let a job start that was to follow others, if they are done; it is cancelled if one of them ended badly."""
        record = self._records[job_id]
        if why := Dependencies.of(record, self._records).why_not:
            self.change(job_id, lifecycle.DependencyEnded(self._clock(), why))
        else:
            self.enter(record)

    def look_at(self, job_id: str) -> None:
        """See how a job that was launched is doing."""
        watch = self._fleet.watch(job_id)
        before, step, held = self._fleet.status(job_id), watch.step, self._fleet.holds(job_id)
        use = self._fleet.use(job_id)
        end = self._fleet.look(job_id)
        self._note_pauses(job_id)
        if end is not None:
            self._lose_preempted(set(end.lost) - _preempted(before))
            self._end(job_id, end)
            return
        status = self._fleet.status(job_id)
        self._lose_preempted(_preempted(status) - _preempted(before))
        self._drain(_drained(status) - _drained(before))
        self._records.version += status != before or watch.step != step or self._fleet.use(job_id) != use
        if (holds := self._fleet.holds(job_id)) != held:
            self._records.note_devices(job_id, holds, self._clock())
        if status is not None:
            record = self._records[job_id]
            if (record.resizes, record.failures) != (status.resizes, status.failures):
                record = self._records.update(job_id, resizes=status.resizes, failures=status.failures)
            nodes = status.virtual_nodes
            if nodes is not None and nodes >= 1 and nodes != record.terms.virtual_nodes:
                self.learn(job_id, virtual_nodes=nodes)
        measured = estimates.measured_memory(watch, self._fleet.use(job_id))
        if measured is not None and measured != self._records[job_id].measured_memory:
            self.learn(job_id, measured_memory=measured)

    def _note_pauses(self, job_id: str) -> None:
        pauses, seen = self._fleet.watch(job_id).pauses_ms, self._pauses_seen.get(job_id, 0)
        self.pauses_ms += pauses[seen:]
        self._pauses_seen[job_id] = len(pauses)

    def _drain(self, devices: Collection[str]) -> None:
        """A sentinel has found that these devices compute wrongly: no job gets them until they are given back."""
        if not devices:
            return
        if gone := tuple(sorted(set(self.driver.scheduler.placement.devices).intersection(devices))):
            self._records.lose(gone)
            self.driver.handle(DevicesLost(self._seconds(), gone))

    def _lose_preempted(self, devices: Collection[str]) -> None:
        """Workers were ended with a signal from outside, as a machine's owner does who needs the devices."""
        if not devices:
            return
        usable = set(self.driver.scheduler.placement.devices) - self.driver.scheduler.placement.lost
        if gone := tuple(sorted(usable.intersection(devices))):
            self.driver.handle(DevicesLost(self._seconds(), gone))  # not saved: before a reboot, all workers are ended

    def _end(self, job_id: str, end: End) -> None:
        """The job's coordinator and workers are gone."""
        watch, has_been_seen, now = self._fleet.watch(job_id), self._fleet.status(job_id) is not None, self._clock()
        self._fleet.forget(job_id)
        # One that ended while there was no manager had its devices until its last event.
        until = now if has_been_seen or watch.last_time is None else watch.last_time
        self._records.note_devices(job_id, (), until)
        self._turns.forget(job_id)
        self._records.update(job_id, measured_steps=watch.times.measured())
        self.change(job_id, lifecycle.Ended(end.how, now, watch.step, end.text))

    def launch(self, job_id: str) -> None:
        """Start the job on those of its devices that are free by now."""
        record = self._records[job_id]
        devices, least = self._free_for(record), max(record.terms.min, self._least(job_id))
        if len(devices) < min(least, len(record.devices)):
            return
        if record.terms.virtual_nodes is None:
            devices = devices[:least]  # on how many it can run is known when it has made its Trainer
        token = self._fleet.prepare(job_id, self.spec(record, devices))
        if token is None:  # a coordinator of an earlier manager has appeared after all
            self._fleet.adopt(job_id, record.devices)
            self.change(job_id, lifecycle.CoordinatorFound(self._clock()))
            return
        self._records.note_devices(job_id, devices, self._clock())
        # Saved before the start: the next manager then looks for the launch, and for the lock.
        self.change(job_id, lifecycle.Launched(token, self._clock()))
        if not self._records.is_saved(job_id):  # nothing starts without a trace
            launch.withdraw(self._fleet.folder(job_id))
            self._fleet.forget(job_id)
            self._records.note_devices(job_id, (), self._clock())
            self._records.save([record])
            return
        folder = self._fleet.folder(job_id).path
        try:
            variables = {**environment.kept(folder), **self._cluster.environment}
            directory = record.directory if Path(record.directory).is_dir() else str(folder)
            self._fleet.start(job_id, token, Origin(record.interpreter, directory, variables))
        except (OSError, ValueError, LaunchError) as error:
            launch.withdraw(self._fleet.folder(job_id))
            self._end(job_id, End(HowEnded.FAILED, f"{record.interpreter} can't be started: {error}"))

    def direct(self, job_id: str) -> None:
        """Send a running job where it should be, or stop it."""
        record = self._records[job_id]
        if self._is_settled(record):
            return  # as most are: no reason to ask which devices others are on
        devices = self._free_for(record)
        if len(devices) < self._least(job_id):
            devices = ()  # fewer than these have no room for it
        # Two jobs that change places would wait for each other.
        if not record.devices or (not devices and self._is_in_the_way(record)):
            self.change(job_id, lifecycle.DevicesWithdrawn())
            record = self._records[job_id]
        if record.wish is not None:
            self._fleet.stop(job_id, checkpoint=record.wish != Wish.CANCEL)
        elif record.terms.virtual_nodes is not None and devices:
            self._fleet.move(job_id, devices)

    def _is_settled(self, record: Record) -> bool:
        """Whether the job is where it should be, and is not to stop."""
        fits = 0 < len(record.devices) <= record.max_devices
        return fits and record.wish is None and self._fleet.is_settled(record.id, record.devices)

    def _is_in_the_way(self, record: Record) -> bool:
        """Whether others are to have what it is on."""
        holds = set(self._fleet.holds(record.id))
        return any(holds & set(other.devices) for other in self._records.all() if other.id != record.id)

    def _free_for(self, record: Record) -> tuple[str, ...]:
        """Those of a job's devices that no other job is on; the ones it is on come first."""
        state = self.driver.scheduler.jobs.get(record.id)
        taken = self._fleet.taken({record.id, record.beside, *(state.co_located if state is not None else ())})
        mine = self._fleet.holds(record.id)
        usable = sorted((device for device in record.devices if device not in taken), key=lambda d: d not in mine)
        return tuple(usable[: max(record.max_devices, self._least(record.id))])

    def _least(self, job_id: str) -> int:
        """The number of devices below which the memory that a job states has no room."""
        held = self.driver.held(job_id)
        return held.min if held is not None and held.types is not None else 0

    def due_for_estimate(self, job_ids: Sequence[str]) -> list[str]:
        """Those of *job_ids* whose turn it is."""
        return self._turns.take(job_ids, self._seconds())

    def estimate(self, job_id: str) -> None:
        """Take in what a running job's steps say of its speed and its length."""
        record = self._records[job_id]
        are_new = self.note_speed(record)
        seconds = estimates.new_estimate(record, self._fleet.watch(job_id), self.driver.learnt.model(job_id))
        if seconds is not None:
            self.learn(job_id, expect_seconds=seconds)
        elif are_new and job_id in self.driver.scheduler.jobs:
            self.driver.handle(JobChanged(self._seconds(), self.driver.job(record)))

    def note_speed(self, record: Record) -> bool:
        """Tell policies how fast a job is; return whether that is new."""
        return self.speeds.look_at(record, tuple(self.driver.scheduler.placement.machine_sizes))

    def done_seconds(self, record: Record) -> float:
        return estimates.done_seconds(record, self._fleet.watch(record.id) if record.started is not None else None)

    def learn(self, job_id: str, **facts: Any) -> None:
        before = self.driver.job(self._records[job_id])
        after = self.driver.job(self._records.update(job_id, **facts))
        if after != before and job_id in self.driver.scheduler.jobs:
            self.driver.handle(JobChanged(self._seconds(), after))

    def spec(self, record: Record, devices: tuple[str, ...]) -> JobSpec:
        spec = description.for_coordinator(
            record, devices, self._cluster, self.driver.scheduler.placement.devices, self.machines
        )
        return spec.changed(stage_profile=_stage_profile(record))


def _stage_profile(record: Record) -> dict[str, Any] | None:
    """The profile that is kept of a script whose model is cut: its job chooses its grid by that."""
    script = record.description.script
    try:
        return profile_files.kept_stages(profiles_of(script))
    except (VirtualFlowError, OSError) as error:
        _log.warning("the stage profiles of %s are of no use to job %s: %s", script, record.id, error)
        return None


def _drained(status: JobStatus | None) -> set[str]:
    return set(status.drained) if status is not None else set()


def _preempted(status: JobStatus | None) -> set[str]:
    return set(status.preempted) if status is not None else set()
