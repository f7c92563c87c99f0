"""A worker's membership in a job started by ``vf run``: receives new generations, and changes to them.

A thread reads what the coordinator sends. It draws no random numbers and touches no tensor; all it does besides
keeping that is to cut the sockets of a group that has lost a member, which frees the training thread from its
collective.
"""

from __future__ import annotations

import json
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar, assert_never

from virtualflow.core import faults
from virtualflow.core.generation import Cause, Generation
from virtualflow.core.mapping import Mapping, first_mapping, spread
from virtualflow.core.membership import Change, Handover, JobContext
from virtualflow.errors import CoordinatorLostError, MessageError, PeerLostError
from virtualflow.job import wire_messages as messages
from virtualflow.job.folder import JobFolder
from virtualflow.job.last_checkpoint import Turn
from virtualflow.job.rendezvous import PostBox, TorchGroup
from virtualflow.job.spec import WorkerSpec
from virtualflow.job.wire import Wire
from virtualflow.job.wire_messages import Heartbeat, ToWorker

ORPHANED_SECONDS = 1860  # beyond two patiences, for a worker without a coordinator to come to a boundary
NEVER_SECONDS = 10.0**6
ORPHANED = 2**62  # stands for a generation: the one in which there is no coordinator


T = TypeVar("T")

_log = logging.getLogger("virtualflow")


class Member:
    """This worker's place in the job."""

    def __init__(self, spec: WorkerSpec, job: JobContext, wire: Wire[ToWorker]) -> None:
        self.job = job
        self.device = spec.device
        self.joining = spec.joins
        self._spec = spec
        self._wire = wire
        self._generation = Generation(0, Cause.START, spec.devices)
        self._group: TorchGroup | None = None
        self._news = threading.Condition()
        self._published: dict[int, Generation] = {}
        self._lost_by = -1  # the newest generation that was published because of a loss
        self._agreed = -1
        self._released = self._all_done = self._orphaned = False
        self._early_results: list[str] = []  # as JSON, of the calls that the job made before its first epoch
        self._early_calls = 0  # how many of those this worker has reached
        self.changes: list[Change] = []
        self._training = 0
        self._got_notice = False
        self.peers: Any = None
        self._handover: TorchGroup | None = None
        self._posts = PostBox(self._post)
        self._turn: Turn | None = None
        threading.Thread(target=self._read_line, daemon=True).start()
        if not spec.joins and len(spec.devices) > 1:
            self._form_first()

    @property
    def devices(self) -> tuple[str, ...]:
        return self._generation.devices

    @property
    def group(self) -> TorchGroup | None:
        return self._group

    @property
    def generation(self) -> int:
        return self._generation.number

    @property
    def has_trainer(self) -> bool:
        return self.peers is not None

    @property
    def seen(self) -> int:
        return ORPHANED if self._orphaned else max(self._published, default=self._generation.number)

    @property
    def change_is_due(self) -> bool:
        return self._agreed > self._generation.number

    def mapping(self, virtual_nodes: int) -> Mapping:
        owners = self._generation.owners
        if owners is not None and len(owners) == virtual_nodes:
            return Mapping(owners)
        if self.joining:
            return spread(virtual_nodes, (self.device,))
        return first_mapping(self._spec.owners, virtual_nodes, self._spec.devices, self.devices)

    def new_trainer(self, number: int, node_sizes: Sequence[int], parameters: int) -> None:
        if not self.joining and number == 1:
            self._wire.send(messages.TrainerMade(tuple(node_sizes), parameters))
            if self._spec.balances:
                self._wait_for_first_mapping()

    def tell_pace(self, step: int, seconds: float, overran: int) -> None:
        if self._spec.reports_pace:
            self._wire.send(messages.StepTime(step, seconds, overran, self._generation.number))

    def begin_training(self) -> bool:
        self._training += 1
        if self._training == 2:
            self._wire.send(messages.FirstLoopLeft())
        return self._training == 1

    def all_have_seen(self, generation: int) -> None:
        self._agreed = max(self._agreed, generation)

    def change(self, send_state: Handover) -> None:
        new, before = self._published[self._agreed], self.devices
        watch = Stopwatch()
        if new.cause == Cause.LOSS:
            raise PeerLostError("a worker was lost before this boundary")
        if new.cause == Cause.REMAP:  # the same workers: the group stays
            self._remap(new, watch)
            return
        if new.sender == self.device:
            with self._handover_group(new) as group:
                watch.lap("form group")
                send_state(group)
                watch.lap("move state")
        if self.device not in new.devices:
            self._wait_for_release(new)
        self._form(new)
        watch.lap("form group")
        self._note_change(before, watch)
        self._wire.send(messages.FormedGroup(new.number))

    def _remap(self, new: Generation, watch: Stopwatch) -> None:
        self._generation = new
        watch.lap("move")
        self._note_change(new.devices, watch)
        self._wire.send(messages.FormedGroup(new.number))

    def _wait_for_first_mapping(self) -> None:
        """The coordinator, which knows how fast the devices are, publishes a mapping before the first step."""

        def first_remap() -> Generation | bool | None:
            remaps = (generation for generation in self._published.values() if generation.cause == Cause.REMAP)
            return next(remaps, None) or (self._lost_by > self._generation.number) or None

        new = self._wait_until(first_remap)
        if isinstance(new, Generation):
            self._remap(new, Stopwatch())

    def exchange(self) -> None:
        self._wire.send(messages.ExchangeWorker(self.job.device_type))

    def shrink(self, count: int) -> None:
        self._wire.send(messages.ShrinkJob(count))

    @property
    def must_stop(self) -> bool:
        return self.orphaned or (self.change_is_due and self._published[self._agreed].cause == Cause.STOP)

    @property
    def orphaned(self) -> bool:
        return self._agreed == ORPHANED

    def stop(self) -> NoReturn:
        if self._turn is not None:
            self._turn.end()
        self._end()

    def leave_early(self) -> None:
        new = self._published.get(self.seen)
        if not self._got_notice or new is None or new.cause != Cause.RESIZE or self.device in new.devices:
            return
        if set(new.devices) - set(new.joining):  # somebody who stays has the state
            self._end()

    def recover(self) -> None:
        watch, before = Stopwatch(), self.devices
        self._break_group()
        self._wire.send(messages.PeerLost(self._generation.number))
        try:
            new = self._wait_for_loss()
        except CoordinatorLostError:
            new = self._go_on_alone()
        watch.lap("agree")
        if self.device not in new.devices:
            self._end()
        self._form(new)
        watch.lap("form group")
        self._note_change(before, watch)
        self._agreed = ORPHANED if new.cause == Cause.COORDINATOR_LOST else -1
        self._wire.send(messages.FormedGroup(new.number))

    def _go_on_alone(self) -> Generation:
        """The coordinator is gone, and a peer: one of those who are left sees the job to its next boundary.

        There a checkpoint can be written. In the middle of an evaluation, or between two lines of the script, it can't:
        a job that resumes runs the script from the top, and can't skip half of what comes after a step.
        """
        if not self._training:
            self._end()  # nothing is lost
        try:
            if self._spec.is_elsewhere and JobFolder(Path(self._spec.job_folder)).is_locked():
                self._end()  # only the line is gone: the job goes on without this worker
            self._turn = Turn(Path(self._spec.job_folder, "alone"))
        except OSError:
            self._end()  # then no checkpoint can be written, either
        if self._turn.is_over:
            self._end()  # another one has seen to it
        return Generation(self._generation.number + 1, Cause.COORDINATOR_LOST, (self.device,))

    def join(self, receive_state: Handover) -> None:
        faults.reach("joining")
        self._wire.send(messages.ReadyToJoin())
        new = self._wait_until(self._invitation)
        watch, before = Stopwatch(), (*(d for d in new.devices if d not in new.joining), *new.leaving)
        try:
            with self._handover_group(new) as group:
                watch.lap("form group")
                receive_state(group)
                watch.lap("move state")
        except PeerLostError:
            self._end()  # without the state: the job starts another one if it wants one
        self._wire.send(messages.HoldsState())
        self.joining = False
        self._form(new)
        watch.lap("form group")
        self._note_change(before, watch)
        self._wire.send(messages.FormedGroup(new.number))

    def record(self, result: Any) -> None:
        self._wire.send(messages.EarlyResult(self._early_calls, json.dumps(result)))
        self._early_calls += 1

    def recorded(self) -> Any:
        self._early_calls += 1
        # The job may take its time over the call; nobody waits for this worker meanwhile.
        self._wait_until(lambda: len(self._early_results) >= self._early_calls or None)
        return json.loads(self._early_results[self._early_calls - 1])

    def finish(self) -> None:
        """Stay until every worker has ended its script: one that is behind may need what this one holds."""
        if self.peers is not None:
            self.peers.announce_end()
        try:
            self._wait_for_the_others()
        except CoordinatorLostError:
            if self.peers is not None:
                self.peers.keep_at_the_end()
            if self._turn is not None:
                self._turn.end()
            raise

    def _wait_for_the_others(self) -> None:
        self._wire.send(messages.ScriptFinished())
        while True:
            self._wait_until(lambda: self._all_done or self._lost_by > self._generation.number or None)
            if self._all_done:
                return
            self.peers.catch_up()
            self._wire.send(messages.ScriptFinished())

    def leave_when_possible(self) -> None:
        """A preemption notice."""
        self._got_notice = True
        self._wire.send(messages.Leaving())

    def _form(self, new: Generation) -> None:
        """Be in the group of *new*."""
        old, self._group = self._group, None
        self._generation = new
        if old is not None:
            old.break_off()
        if len(new.devices) == 1:
            return
        group = TorchGroup(new.group_name, new.devices.index(self.device), len(new.devices))
        self._group = group
        if self._lost_by > new.number:
            raise PeerLostError("a worker was lost before the group was formed")
        group.form(self._posts, self._spec.address, self._spec.patience_seconds)

    def _form_first(self) -> None:
        try:
            self._form(self._generation)
        except PeerLostError:
            while not self._has_recovered():
                pass

    def _has_recovered(self) -> bool:
        try:
            self.recover()
        except CoordinatorLostError:
            raise
        except PeerLostError:
            return False  # another one was lost meanwhile
        return True

    def _post(self, group: str, key: str, value: bytes) -> None:
        """Send something to the other workers of a group, before it is formed."""
        self._wire.send(messages.GroupPost(group, key, value))

    def _note_change(self, before: tuple[str, ...], watch: Stopwatch) -> None:
        new = self._generation
        joined = tuple(device for device in new.devices if device not in before)
        left = tuple(device for device in before if device not in new.devices)
        self.changes.append(Change(new.number, new.cause, new.devices, joined, left, watch.milliseconds))

    def _handover_group(self, new: Generation) -> TorchGroup:
        ranks = [new.sender, *new.joining]
        group = TorchGroup(new.handover_name, ranks.index(self.device), len(ranks))
        self._handover = group
        if self._lost_by > new.number:
            raise PeerLostError("a worker was lost before the state could be handed over")
        group.form(self._posts, self._spec.address, self._spec.patience_seconds)
        return group

    def _break_group(self) -> None:
        if self._group is not None:
            self._group.break_off()
            self._group = None

    def _wait_for_loss(self) -> Generation:
        """The newest generation that was published because of a loss, once it is newer than the current one."""

        def newest_loss() -> Generation | None:
            return self._published[self._lost_by] if self._lost_by > self._generation.number else None

        return self._wait_until(newest_loss)

    def _invitation(self) -> Generation | None:
        for generation in self._published.values():
            if self.device in generation.joining and generation.number > self._lost_by:
                return generation
        return None

    def _wait_for_release(self, new: Generation) -> None:
        """Stay until those who join hold the state; do not return unless there was a loss."""
        self._wait_until(lambda: self._released or self._lost_by > new.number or None)
        if self._released:
            self._end()
        raise PeerLostError("a worker was lost before this one could leave")

    def _wait_until(self, condition: Callable[[], T | None]) -> T:
        """What *condition* returns as soon as that is not None. Raises CoordinatorLostError if it never will be."""
        with self._news:
            while (value := condition()) is None:
                if self._orphaned:
                    raise CoordinatorLostError("the coordinator of this job is gone")
                self._news.wait()
            return value

    def _read_line(self) -> None:
        """Until the coordinator is gone."""
        try:
            self._receive_all()
        except MessageError as error:
            _log.warning("the coordinator sent what can't be understood, and is left: %s", error)
        with self._news:
            self._orphaned = True
            self._news.notify_all()
        self._posts.wake()
        # It leaves a checkpoint at the next boundary; the kernel ends it if its script never comes to one.
        signal.alarm(math.ceil(2 * self._spec.patience_seconds) + ORPHANED_SECONDS)

    def _receive_all(self) -> None:
        # A coordinator on this machine can't be cut off, however long it is silent.
        patience = 2 * self._spec.patience_seconds if self._spec.is_elsewhere else NEVER_SECONDS
        while self._wire.is_readable(patience) and (received := self._wire.receive()) is not None:
            with self._news:
                for message in received:
                    self._take(message)
                self._news.notify_all()

    def _take(self, message: ToWorker | Heartbeat) -> None:
        match message:
            case messages.NewGeneration(new):
                self._published[new.number] = new
                if new.cause == Cause.LOSS:
                    self._lost_by = new.number
                    self._cut_groups()
            case messages.GroupPost(group, key, value):
                self._posts.add(group, key, value)
            case messages.EarlyResult():
                self._early_results.append(message.value)
            case messages.Released():
                self._released = True
            case messages.AllFinished():
                self._all_done = True
            case Heartbeat():
                pass
            case _:
                assert_never(message)

    def _cut_groups(self) -> None:
        """Free the training thread from a collective that can't end any more."""
        for group in (self._group, self._handover):
            if group is not None:
                group.cut_connections()
        self._posts.wake()

    def _end(self) -> NoReturn:
        """This worker is no longer needed."""
        raise Leave


class Stopwatch:
    """How a pause divides."""

    def __init__(self) -> None:
        self.milliseconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.milliseconds[name] = round(self.milliseconds.get(name, 0.0) + 1000 * (now - self._last), 3)
        self._last = now


class Leave(BaseException):
    """Ends the script of a worker that leaves, from inside ``batches``. Not an error."""
