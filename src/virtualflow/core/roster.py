"""Who belongs to a job, and who should: one method, no I/O. An event in, a list of actions out.

The coordinator feeds it what happens to workers and carries out what it decides. Time comes in as an argument.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from virtualflow.core import roster_events as on
from virtualflow.core.backoff import BackOff
from virtualflow.core.balance import Speeds
from virtualflow.core.departures import LeaveNotices, LossReports
from virtualflow.core.generation import Cause, Generation
from virtualflow.core.job_mapping import JobMapping
from virtualflow.core.joiners import Joiners
from virtualflow.core.mapping import DeviceId, Mapping
from virtualflow.core.pending_change import PendingChange
from virtualflow.core.roster_actions import (
    AbandonJob,
    FinishJob,
    KillWorker,
    PublishGeneration,
    ReleaseWorker,
    RosterAction,
)
from virtualflow.core.standing import JobStanding
from virtualflow.errors import MappingError


class Roster:
    """The membership of one job. Everything but ``handle`` only reads it."""

    def __init__(
        self,
        devices: tuple[DeviceId, ...],
        owners: tuple[int, ...] | None = None,
        speeds: Speeds | None = None,
        *,
        replace_lost: bool = True,
        patience_seconds: float = 30.0,
    ) -> None:
        """*owners* is a mapping given by hand; *speeds* are those of devices that are not all alike."""
        self._replace_lost = replace_lost
        self._patience_seconds = patience_seconds

        self._generation = Generation(0, Cause.START, devices)
        self._last_number = 0  # of all generations published so far
        self._change: PendingChange | None = None
        self._target = devices
        self._mapping = JobMapping(devices, owners, speeds)
        self._guests: set[DeviceId] = set()  # devices whose workers other launchers have started

        self._joiners = Joiners()
        self._notices = LeaveNotices()
        self._reports = LossReports()
        self._back_off = BackOff(dict.fromkeys(devices, -math.inf))

        self._ended: set[DeviceId] = set()  # workers whose script has come to its end
        self._closed = False
        self._stopping = False
        self._stop_published_for = -1  # the newest generation whose workers know that they are to stop
        self._resizes = self._remaps = self._failures = 0

    @property
    def generation(self) -> Generation:
        """The newest generation that all of its workers have formed."""
        return self._generation

    @property
    def pending(self) -> Generation | None:
        """The generation that is published, and that not all of its workers have formed yet."""
        return self._change.generation if self._change is not None else None

    @property
    def target(self) -> tuple[DeviceId, ...]:
        """The devices that are wanted."""
        return self._target

    @property
    def mapping(self) -> Mapping | None:
        """Which device runs which virtual nodes; None until their number is known."""
        return self._mapping.current

    @property
    def node_sizes(self) -> tuple[int, ...]:
        return self._mapping.node_sizes

    @property
    def speeds(self) -> Speeds | None:
        """The speeds of its devices, if they are not all alike."""
        return self._mapping.speeds

    @property
    def guests(self) -> frozenset[DeviceId]:
        """The devices whose workers other launchers have started."""
        return frozenset(self._guests)

    @property
    def starting(self) -> frozenset[DeviceId]:
        """The devices whose workers are being started, and do not wait for the job's state yet."""
        return frozenset(self._joiners.starting)

    @property
    def is_settled(self) -> bool:
        """Whether the membership is what is wanted."""
        return self._change is None and set(self._generation.devices) == set(self._target)

    @property
    def closed(self) -> bool:
        """Whether joining is closed."""
        return self._closed

    @property
    def stopping(self) -> bool:
        return self._stopping

    @property
    def resizes(self) -> int:
        return self._resizes

    @property
    def remaps(self) -> int:
        return self._remaps

    @property
    def failures(self) -> int:
        """The number of workers that were lost without a preemption notice."""
        return self._failures

    @property
    def suspects_a_worker(self) -> bool:
        """Whether a group has broken, and no worker is known to be lost."""
        return self._reports.is_second_try

    def group(self, name: str) -> tuple[DeviceId, ...]:
        """The members of the group of that name; none if it belongs to another generation."""
        return (self.pending or self._generation).group(name)

    def handle(self, event: on.RosterEvent, now: float) -> list[RosterAction]:
        """Apply *event*; return what must be done. Raises MappingError, and changes nothing, if that can't work."""
        match event:
            case on.SizesKnown(node_sizes):
                return self._sizes_known(node_sizes)
            case on.ResizeWanted(devices):
                return self._resize(devices, now)
            case on.ShrinkWanted(count):
                return [*self._close(), *self._resize(self._generation.devices[:count], now)]
            case on.RemapWanted(mapping):
                return self._remap(mapping)
            case on.StopWanted():
                return self._stop(now)
            case on.JoiningClosed():
                return self._close()
            case on.WorkerOffered(device):
                return self._offered(device)
            case on.DeviceWithdrawn(device):
                return self._withdraw(device)
            case on.StartPostponed(device, until):
                self._joiners.starting.discard(device)
                self._back_off.postpone(until)
                return []
            case on.JoinerReady(device):
                self._joiners.is_ready(device, now)
                return self._towards_target(now)
            case on.StateReceived(device):
                if self._change is not None:
                    self._change.has_state(device)
                return []
            case on.GroupFormed(device, number):
                return self._formed(device, number, now)
            case on.LossReported(device, number):
                if self._takes_part(device):
                    self._reports.add(device, number, now)
                return []
            case on.LeaveNoticed(device):
                return self._leave(device, now)
            case on.ScriptEnded(device):
                return self._script_ended(device)
            case on.WorkerGone(device):
                return self._gone(device, now)
            case on.JobTakenOver(standing, wanted):
                return self._take_over(standing, wanted, now)
            case on.TimePassed():
                return self._tick(now)
            case _:
                assert_never(event)

    def _sizes_known(self, node_sizes: tuple[int, ...]) -> list[RosterAction]:
        if self.mapping is not None:
            return []
        self._mapping.begin(node_sizes, self._generation.devices)
        self._target = self._target[: len(node_sizes)]  # more may have been asked for before the number was known
        return self._first_mapping() if self._change is None else []

    def _first_mapping(self) -> list[RosterAction]:
        """By speed: the workers wait for it before their first step."""
        if not self._mapping.is_awaited:
            return []
        self._mapping.is_awaited = False
        return self._remap(self._mapping.on(self._generation.devices))

    def _remap(self, mapping: Mapping) -> list[RosterAction]:
        fits = set(mapping.devices) == set(self._generation.devices)
        if self._change is not None or self._ended or self._stopping or not fits:
            return []
        new = Generation(self._next_number(), Cause.REMAP, self._generation.devices, mapping.devices)
        self._change = PendingChange(new)
        return [PublishGeneration(new)]

    def _resize(self, devices: tuple[DeviceId, ...], now: float) -> list[RosterAction]:
        if not devices:
            raise MappingError("a job needs at least one device")
        self._mapping.check(devices)
        if self._closed and not set(devices) <= set(self._generation.devices):
            raise MappingError(CLOSED)
        self._target = devices
        self._back_off.forgive()
        return self._towards_target(now)

    def _offered(self, device: DeviceId) -> list[RosterAction]:
        self._mapping.check_one_more(self._target)
        if self._closed:
            raise MappingError(CLOSED)
        self._target = (*self._target, device)
        self._guests.add(device)
        self._joiners.starting.add(device)
        return []

    def _close(self) -> list[RosterAction]:
        self._closed = True
        self._target = tuple(d for d in self._target if d in self._generation.devices) or self._generation.devices
        late = self.pending.joining if self.pending is not None else ()
        return [*self._joiners.dismiss(self._joiners.all), *(KillWorker(device) for device in late)]

    def _takes_part(self, device: DeviceId) -> bool:
        """Whether a device's worker is in a group, or about to be."""
        return device in self._generation.devices or (self.pending is not None and device in self.pending.devices)

    def _withdraw(self, device: DeviceId) -> list[RosterAction]:
        self._target = tuple(d for d in self._target if d != device) or self._generation.devices
        return []

    def _formed(self, device: DeviceId, number: int, now: float) -> list[RosterAction]:
        change = self._change
        if change is None or change.generation.number != number:
            return []
        change.has_formed(device)
        if not change.is_formed:
            return []
        before, new = self._generation, change.generation
        self._generation, self._change = new, None
        self._reports.clear()
        self._remaps += new.cause == Cause.REMAP
        if new.cause == Cause.RESIZE:
            self._resizes += 1
            self._back_off.joined(new.joining, now)
        if new.owners is not None:
            self._mapping.current = Mapping(new.owners)
        released: list[RosterAction] = [ReleaseWorker(d) for d in before.devices if d not in new.devices]
        return released + self._first_mapping() + self._towards_target(now)

    def _leave(self, device: DeviceId, now: float) -> list[RosterAction]:
        others = tuple(d for d in self._target if d != device)
        if not others:
            return self._stop(now)  # no other worker could hold the state
        self._target = others
        self._notices.add(device, now)
        return self._towards_target(now)

    def _stop(self, now: float) -> list[RosterAction]:
        """A change that is under way comes first."""
        self._stopping = True
        self._target = self._generation.devices
        return self._towards_target(now)

    def _tick(self, now: float) -> list[RosterAction]:
        actions: list[RosterAction] = []
        current = [d for d in (self.pending or self._generation).devices if d not in self._ended]
        if self._reports.are_overdue(current, now, max(2.0, self._patience_seconds / 10)):
            if stuck := self._reports.stuck(current):
                self._reports.clear()
                actions += [KillWorker(device, STUCK) for device in stuck]
            else:
                actions += self._publish_loss(())
                self._reports.is_second_try = True
        if self._nobody_takes_over(now):
            return actions + self._stop(now)
        if self._back_off.may_start(now):
            actions += self._towards_target(now)
        return actions

    def _nobody_takes_over(self, now: float) -> bool:
        """Whether all workers got a notice, and their replacements are late."""
        waits = self._change is None and not self._joiners.waiting and not self._stopping
        late = now - self._notices.newest_at > self._patience_seconds
        return waits and late and self._notices.include_all(self._generation.devices)

    def _script_ended(self, device: DeviceId) -> list[RosterAction]:
        self._ended.add(device)
        if len(self._ended) < len(self._generation.devices) or not self._ended.issuperset(self._generation.devices):
            return []
        if self.pending is not None and self.pending.cause == Cause.LOSS:
            return []
        # A resize that is still under way has no boundary left to happen at.
        joining = set(self.pending.joining) if self.pending is not None else set()
        return [*self._joiners.dismiss(self._joiners.all | joining), FinishJob()]

    def _gone(self, device: DeviceId, now: float) -> list[RosterAction]:
        was_waiting = device in self._joiners.waiting
        if self._joiners.remove(device):
            return []
        self._failures += device not in self._notices.devices
        self._notices.remove((device,))
        if self._closed or not self._replace_lost:
            self._withdraw(device)
        present = device in self._generation.devices
        with_state = present or (self._change is not None and device in self._change.joiners_with_state)
        takes_part = with_state or self._takes_part(device)
        if device in self._target or (not takes_part and was_waiting) or (takes_part and not with_state):
            self._back_off.lost(device, now)
        if self._back_off.is_hopeless:
            return [AbandonJob(HOPELESS.format(self._back_off.losses))]
        return self._publish_loss((device,)) if takes_part else []

    def _publish_loss(self, lost: Sequence[DeviceId]) -> list[RosterAction]:
        """Continue without *lost*, with all workers that hold the state."""
        with_state = self._change.joiners_with_state if self._change is not None else ()
        without = self._change.joiners_without_state if self._change is not None else ()
        survivors = tuple(d for d in (*self._generation.devices, *with_state) if d not in lost)
        if not survivors:
            return [AbandonJob("all workers were lost")]
        actions = self._joiners.dismiss(d for d in without if d not in lost)
        surplus = self._surplus(survivors)
        survivors = tuple(d for d in survivors if d not in surplus)
        self._generation = replace(self._generation, devices=survivors)
        self._ended &= set(survivors)
        generation = self._next(Cause.LOSS, survivors)
        self._reports.newest_loss = generation.number
        return [*actions, *(ReleaseWorker(device) for device in surplus), PublishGeneration(generation)]

    def _take_over(self, job: JobStanding, wanted: tuple[DeviceId, ...], now: float) -> list[RosterAction]:
        """Go on with the workers that are there.

        If a change was under way, or one of them is missing, all form a new group, as after a death: who was told what
        by the dead coordinator does not matter then.
        """
        if job.generation is None:
            return [AbandonJob(NOBODY_LEFT)]
        self._generation, self._last_number = job.generation, job.newest
        self._stopping = job.must_stop
        actions = self._joiners.take_over(job, now)
        if self._closed or not self._replace_lost:
            wanted = tuple(d for d in wanted if d in (*job.survivors, *job.joiners))
        self._target = wanted or job.survivors
        if job.node_sizes:
            self._mapping.take_over(job.generation, job.node_sizes)
        if job.is_undisturbed:
            actions += [ReleaseWorker(d) for d in job.survivors if d not in job.generation.devices]
            for device in job.generation.devices:
                if job.standings[device].has_finished:
                    actions += self._script_ended(device)
            return [*actions, *self._first_mapping(), *self._towards_target(now)]
        self._failures += sum(device not in job.standings for device in job.generation.devices)
        surplus = len(job.survivors) - len(job.node_sizes or job.survivors)
        leaving = [d for d in job.survivors if d not in self._target][: max(0, surplus)]
        self._generation = replace(job.generation, devices=tuple(d for d in job.survivors if d not in leaving))
        return [*actions, *(ReleaseWorker(d) for d in leaving), *self._publish_loss(())]

    def _surplus(self, survivors: Sequence[DeviceId]) -> list[DeviceId]:
        """Workers that were to leave, as far as *survivors*, joiners included, outnumber the virtual nodes."""
        if self.mapping is None or self.pending is None:
            return []
        leaving = [d for d in survivors if d not in self.pending.devices]
        return leaving[: max(0, len(survivors) - self.mapping.virtual_nodes)]

    def _towards_target(self, now: float) -> list[RosterAction]:
        """What brings the membership nearer to what is wanted. Nothing while a change is under way."""
        if self._change is not None or self._ended or self.mapping is None:
            return []
        wanted, joiners, coming = self._target, self._joiners, self._joiners.all
        if self._stopping:
            return joiners.dismiss(coming) + self._publish_stop()
        present, unwanted = set(self._generation.devices), coming.difference(wanted)
        actions = joiners.dismiss(unwanted)
        missing = [d for d in wanted if d not in present and d not in coming]
        if missing and self._back_off.may_start(now):
            actions += self._start(missing)
            missing = []
        if joiners.starting or missing:
            hurry = self._notices.include_any(present) and not present.isdisjoint(wanted)
            if not hurry and (not joiners.waiting or now - joiners.waiting_since < self._patience_seconds):
                return actions  # train on until all who join are ready
            # Who is late, for want of a free device perhaps, comes later; who got a notice can't wait for that.
            wanted = tuple(d for d in wanted if d in present or d in joiners.waiting)
        if set(wanted) != present:
            remain = present.intersection(wanted)
            stay = tuple(d for d in self._generation.devices if d in remain)
            joining = tuple(d for d in wanted if d not in present)
            actions.append(PublishGeneration(self._next(Cause.RESIZE, (*stay, *joining), joining)))
        return actions

    def _start(self, devices: Sequence[DeviceId]) -> list[RosterAction]:
        self._notices.remove(devices)
        self._back_off.started(devices)
        return self._joiners.start(devices)

    def _publish_stop(self) -> list[RosterAction]:
        if self._stop_published_for == self._generation.number:
            return []
        self._stop_published_for = self._generation.number  # again after a loss: that generation is another one
        return [PublishGeneration(Generation(self._next_number(), Cause.STOP, self._generation.devices))]

    def _next(self, cause: Cause, devices: tuple[DeviceId, ...], joining: tuple[DeviceId, ...] = ()) -> Generation:
        # The lead writes the job's files, so it should be a worker of this machine as long as there is one.
        ranked = tuple(sorted(devices, key=lambda device: device in self._guests))
        owners = self._mapping.on(ranked).devices if self.mapping is not None else None
        new = self._generation.successor(self._next_number(), cause, ranked, owners, joining)
        self._change = PendingChange(new)
        self._joiners.admit(joining)
        self._reports.clear()
        return new

    def _next_number(self) -> int:
        self._last_number += 1
        return self._last_number


CLOSED = (
    "the job is past the loop of its first Trainer. A worker that joins runs the script from the top, so none can "
    "join a later one; fewer devices are possible"
)
STUCK = "it keeps the others from forming a group: it stands still, or its script does not come to the end of a step"
NOBODY_LEFT = "the coordinator was killed, and no worker is left that holds the job's state"
HOPELESS = (
    "{} workers were lost in a row. Something kills every worker that this job starts: look at the script, and at the "
    "memory of the machine."
)
