"""A worker's membership in a job started by ``vf run``: changes to new generations, together with the others."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from virtualflow.core import faults
from virtualflow.core.generation import Cause, Generation
from virtualflow.core.mapping import Mapping, first_mapping, spread
from virtualflow.core.membership import Change, Handover, JobContext
from virtualflow.core.standing import Standing
from virtualflow.core.verdicts import SentinelVerdict
from virtualflow.errors import CoordinatorLostError, PeerLostError
from virtualflow.job import wire_messages as messages
from virtualflow.job.coordinator_line import CoordinatorLine
from virtualflow.job.folder import JobFolder
from virtualflow.job.last_checkpoint import Turn
from virtualflow.job.lasting_wire import LastingWire
from virtualflow.job.rendezvous import TorchGroup
from virtualflow.job.spec import WorkerSpec

ORPHANED = 2**62  # stands for a generation: the one in which there is no coordinator


class Member:
    """This worker's place in the job."""

    def __init__(self, spec: WorkerSpec, job: JobContext, wire: LastingWire, outputs: Sequence[int] = ()) -> None:
        """*outputs* are the other ends of this process's stdout and stderr, for a coordinator that takes over."""
        self.job = job
        self.device = spec.device
        self.joining = spec.joins
        self._spec = spec
        self._generation = Generation(0, Cause.START, spec.devices)
        self._group: TorchGroup | None = None
        self._agreed = -1
        self._early_calls = 0  # of those that the job makes before its first epoch: how many this worker has reached
        self.changes: list[Change] = []
        self.stage_sizes: tuple[tuple[int, int], ...] = ()
        self._training = 0
        self._got_notice = False
        self._has_formed = not spec.joins and len(spec.devices) == 1  # its group, if it is not alone
        self._is_ready = self._has_finished = False
        self._node_sizes: tuple[int, ...] = ()
        self._outputs = tuple(outputs)
        self._server = os.getppid()
        if outputs:
            os.register_at_fork(after_in_child=self._let_go_of_outputs)
        self.peers: Any = None
        self._handover: TorchGroup | None = None
        self._turn: Turn | None = None
        self._line = CoordinatorLine(wire, spec, self._cut_groups, self._report, self._let_go_of_outputs)
        self._line.open()
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
        return ORPHANED if self._line.is_lost else max(self._line.published, default=self._generation.number)

    @property
    def change_is_due(self) -> bool:
        return self._agreed > self._generation.number

    @property
    def coming(self) -> tuple[str, ...]:
        new = self._line.published.get(self._agreed) if self.change_is_due else None
        return self.devices if new is None else new.devices

    def mapping(self, virtual_nodes: int) -> Mapping:
        owners = self._generation.owners
        if owners is not None and len(owners) == virtual_nodes:
            return Mapping(owners)
        if self.joining:
            return spread(virtual_nodes, (self.device,))
        return first_mapping(self._spec.description.owners, virtual_nodes, self._spec.devices, self.devices)

    def new_trainer(self, number: int, node_sizes: Sequence[int], parameters: int) -> None:
        if number == 1:
            self._node_sizes = tuple(node_sizes)
        if not self.joining and number == 1:
            self._line.send(messages.TrainerMade(tuple(node_sizes), parameters))
            if self._spec.balances:
                self._wait_for_first_mapping()

    def report_pace(self, step: int, seconds: float, overran: int) -> None:
        if self._spec.reports_pace:
            self._line.send(messages.StepTime(step, seconds, overran, self._generation.number))

    def begin_training(self) -> bool:
        self._training += 1
        if self._training == 2:
            self._line.send(messages.FirstLoopLeft())
        return self._training == 1

    def all_have_seen(self, generation: int) -> None:
        self._agreed = max(self._agreed, generation)

    def change(self, send_state: Handover) -> None:
        new, before = self._line.published[self._agreed], self.devices
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
        self._enter(new, before, watch)

    def _enter(self, new: Generation, before: tuple[str, ...], watch: Stopwatch) -> None:
        """Take part in *new* from now on, as all its workers do."""
        self._form(new)
        watch.lap("form group")
        self._note_change(before, watch)
        self._line.send(messages.FormedGroup(new.number))

    def _report(self) -> messages.WorkerReport:
        """How far this worker has come, for a coordinator that takes over."""
        published = self._line.published.copy()
        standing = Standing(
            generation=self._generation,
            has_formed=self._has_formed,
            newest=max(published, default=self._generation.number),
            holds_state=not self.joining,
            is_ready=self._is_ready,
            is_invited=any(self.device in generation.joining for generation in published.values()),
            must_stop=any(generation.cause == Cause.STOP for generation in published.values()),
            has_finished=self._has_finished,
            node_sizes=self._node_sizes,
        )
        return messages.WorkerReport(self.device, standing, self._outputs, self._server, self._spec.resume_from)

    def _let_go_of_outputs(self) -> None:
        """Nobody will read them: what is printed is lost, and whoever prints must not wait."""
        while self._outputs:
            reader, *others = self._outputs
            self._outputs = tuple(others)
            os.close(reader)

    def _remap(self, new: Generation, watch: Stopwatch) -> None:
        self._generation = new
        watch.lap("move")
        self._note_change(new.devices, watch)
        self._line.send(messages.FormedGroup(new.number))

    def _wait_for_first_mapping(self) -> None:
        """The coordinator, which knows how fast the devices are, publishes a mapping before the first step."""

        def first_remap() -> Generation | bool | None:
            remaps = (generation for generation in self._line.published.values() if generation.cause == Cause.REMAP)
            return next(remaps, None) or (self._line.newest_loss > self._generation.number) or None

        new = self._line.wait_until(first_remap)
        if isinstance(new, Generation):
            self._remap(new, Stopwatch())

    def exchange(self) -> None:
        self._line.send(messages.ExchangeWorker(self.job.device_type))

    def shrink(self, count: int) -> None:
        self._line.send(messages.ShrinkJob(count))

    def report_verdict(self, step: int, verdict: SentinelVerdict) -> None:
        if verdict.device != self.device:
            drained = verdict.action == "drained"
            self._line.send(messages.VerdictReached(step, verdict.device, drained, verdict.text))

    @property
    def must_stop(self) -> bool:
        return self.orphaned or (self.change_is_due and self._line.published[self._agreed].cause == Cause.STOP)

    @property
    def orphaned(self) -> bool:
        return self._agreed == ORPHANED

    def stop(self) -> NoReturn:
        if self._turn is not None:
            self._turn.end()
        self._end()

    def leave_early(self) -> None:
        new = self._line.published.get(self.seen)
        if not self._got_notice or new is None or new.cause != Cause.RESIZE or self.device in new.devices:
            return
        if set(new.devices) - set(new.joining):  # a worker that stays has the state
            self._end()

    def recover(self) -> None:
        watch, before = Stopwatch(), self.devices
        self._has_formed = self._has_finished = False
        self._break_group()
        self._line.send(messages.PeerLost(self._generation.number))
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
        self._line.send(messages.FormedGroup(new.number))

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
        self._is_ready = True
        self._line.send(messages.ReadyToJoin())
        new = self._line.wait_until(self._invitation)
        watch, before = Stopwatch(), (*(d for d in new.devices if d not in new.joining), *new.leaving)
        try:
            with self._handover_group(new) as group:
                watch.lap("form group")
                self._check_device_type(group)
                receive_state(group)
                watch.lap("move state")
        except PeerLostError:
            self._end()  # without the state: the job starts another one if it wants one
        self.joining = False
        self._line.send(messages.HoldsState())
        self._enter(new, before, watch)

    def _check_device_type(self, group: TorchGroup) -> None:
        """Join no job whose bits this worker's kernels would change."""
        if group.device_types == {self.job.device_type} or self.job.mixed:
            return
        theirs = ", ".join(sorted(group.device_types - {self.job.device_type}))
        self._line.send(
            messages.JoinRefused(
                f"its device is of type {self.job.device_type} and the job's are of type {theirs}, whose kernels round "
                "differently, so that the job would not end with the same bits. Join from a machine that has such a "
                "device and does not hide it (CUDA_VISIBLE_DEVICES), or start the job with --device-type."
            )
        )
        self._end()

    def record(self, result: Any) -> None:
        self._line.send(messages.EarlyResult(self._early_calls, json.dumps(result)))
        self._early_calls += 1

    def recorded(self) -> Any:
        self._early_calls += 1
        # The call may take the job long; no other worker waits for this one meanwhile.
        self._line.wait_until(lambda: len(self._line.early_results) >= self._early_calls or None)
        return json.loads(self._line.early_results[self._early_calls - 1])

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
        self._note_finished()
        while True:
            self._line.wait_until(
                lambda: self._line.all_finished or self._line.newest_loss > self._generation.number or None
            )
            if self._line.all_finished:
                return
            self.peers.catch_up()
            self._note_finished()

    def _note_finished(self) -> None:
        self._has_finished = True
        self._line.send(messages.ScriptFinished())

    def leave_when_possible(self) -> None:
        """A preemption notice."""
        self._got_notice = True
        self._line.send(messages.Leaving())

    def _form(self, new: Generation) -> None:
        """Be in the group of *new*."""
        old, self._group = self._group, None
        self._has_formed = False
        self._generation = new
        if old is not None:
            old.break_off()
        if len(new.devices) == 1:
            self._has_formed = True
            return
        rank, size = new.devices.index(self.device), len(new.devices)
        group = TorchGroup(new.group_name, rank, size, self.job.device_type)
        self._group = group
        if self._line.newest_loss > new.number:
            raise PeerLostError("a worker was lost before the group was formed")
        group.form(self._line.posts, self._spec.address, self._spec.patience_seconds)
        self._has_formed = True

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

    def _note_change(self, before: tuple[str, ...], watch: Stopwatch) -> None:
        new = self._generation
        joined = tuple(device for device in new.devices if device not in before)
        left = tuple(device for device in before if device not in new.devices)
        self.changes.append(Change(new.number, new.cause, new.devices, joined, left, watch.milliseconds))

    def _handover_group(self, new: Generation) -> TorchGroup:
        ranks = [new.sender, *new.joining]
        group = TorchGroup(new.handover_name, ranks.index(self.device), len(ranks), self.job.device_type)
        self._handover = group
        if self._line.newest_loss > new.number:
            raise PeerLostError("a worker was lost before the state could be handed over")
        group.form(self._line.posts, self._spec.address, self._spec.patience_seconds)
        return group

    def _break_group(self) -> None:
        if self._group is not None:
            self._group.break_off()
            self._group = None

    def _wait_for_loss(self) -> Generation:
        """The newest generation that was published because of a loss, once it is newer than the current one."""

        def newest_loss() -> Generation | None:
            return (
                self._line.published[self._line.newest_loss]
                if self._line.newest_loss > self._generation.number
                else None
            )

        return self._line.wait_until(newest_loss)

    def _invitation(self) -> Generation | None:
        for generation in self._line.published.values():
            if self.device in generation.joining and generation.number > self._line.newest_loss:
                return generation
        return None

    def _wait_for_release(self, new: Generation) -> None:
        """Stay until those who join hold the state; do not return unless there was a loss."""
        self._line.wait_until(lambda: self._line.is_released or self._line.newest_loss > new.number or None)
        if self._line.is_released:
            self._end()
        raise PeerLostError("a worker was lost before this one could leave")

    def _cut_groups(self) -> None:
        """Free the training thread from a collective that can't end any more."""
        for group in (self._group, self._handover):
            if group is not None:
                group.cut_connections()

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
