"""The process that owns one job's membership: decodes what happens, asks the roster, carries out what it decides."""

from __future__ import annotations

import logging
import math
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import assert_never

from virtualflow.core import roster_events as on
from virtualflow.core.generation import Cause, Generation
from virtualflow.core.roster import Roster
from virtualflow.core.roster_actions import (
    AbandonJob,
    FinishJob,
    KillWorker,
    PublishGeneration,
    ReleaseWorker,
    RosterAction,
    StartWorker,
)
from virtualflow.errors import LaunchError, MappingError, NotReadyError
from virtualflow.job import balancing, checkpoints, exchange
from virtualflow.job import wire_messages as messages
from virtualflow.job.backend import Backend
from virtualflow.job.balancing import Balancing
from virtualflow.job.crew import Crew, Worker
from virtualflow.job.device_use import UseRecorder
from virtualflow.job.exchange import Exchange
from virtualflow.job.folder import JobFolder, JobSpec
from virtualflow.job.found_job import FoundJob
from virtualflow.job.job_requests import JobRequests
from virtualflow.job.listener import Listener
from virtualflow.job.outcome import Ending, JobOutcome, signal_name
from virtualflow.job.output import Sink
from virtualflow.job.post_office import PostOffice
from virtualflow.job.spec import CHANGED, EXIT, NO_MAPPING, Failure
from virtualflow.job.starting import RETRY_SECONDS, Starting
from virtualflow.job.status import JobStatus, status_of
from virtualflow.job.tokens import parse_address
from virtualflow.job.verdict_reports import VerdictReports
from virtualflow.job.wire import BEATS, Wire
from virtualflow.job.wire_messages import FromWorker, JobRequest
from virtualflow.program.manifest import RunningProgram
from virtualflow.system import identity

GRACE_SECONDS = 2.0  # between asking a worker to end and ending it
TICK_SECONDS = 0.1
JOIN_PATIENCES = 20.0  # for the script of a worker that joins to come to the job's loop,
JOIN_TIMES = 5.0  # or this multiple of what it took at the job's start, if that is longer
LATE_JOINER = (
    "its script has not come to where the job is within {:.0f} s. Look at what it waits for (`vf logs`); a larger "
    "--patience gives it longer."
)

_log = logging.getLogger("virtualflow")


class Coordinator:
    """Runs one job on a *backend* until its script has ended everywhere, or anywhere with an error."""

    def __init__(
        self,
        job: JobSpec,
        folder: JobFolder,
        backend: Backend,
        sink: Sink,
        on_tick: Callable[[], None] = lambda: None,
        resume_from: Path | None = None,
        found: FoundJob | None = None,
    ) -> None:
        """*found* is a job that runs already, and whose coordinator has died."""
        self._job = job
        self._found = found
        self._folder = folder
        self._running_program = RunningProgram(folder.snapshot, job.description.script)
        self._backend = backend
        self._sink = sink
        self._on_tick = on_tick
        self._crew = Crew(backend, self)
        self._listener = Listener(self._crew.selector, self._on_request, self._admit)
        self._exchange = Exchange()
        self.verdicts = VerdictReports()
        self._ending = Ending(lambda: checkpoints.is_damaged(folder, resume_from))
        self._began = math.inf
        self._script_seconds = math.inf  # from the job's start to its first Trainer
        self._written: JobStatus | None = None
        self._host = backend.address
        speeds = balancing.speeds_of(job)
        self.roster = Roster(
            job.devices,
            job.description.owners,
            speeds,
            replace_lost=job.replace_lost,
            patience_seconds=job.patience_seconds,
        )
        self._published: list[Generation] = []  # and not sent yet
        self._post_office = PostOffice(self.roster.group, self._crew.send)
        self.balancing = Balancing(job, self.roster, speeds, self._print)
        self._starting = Starting(
            job, folder, self._running_program, self._crew, self.roster, self.balancing, resume_from
        )
        self._requests = JobRequests(
            job,
            backend,
            self.roster,
            self.balancing,
            self._starting,
            self._exchange,
            self._ending,
            self.verdicts,
            self._handle,
            self._print,
        )
        self._counts_before = folder.read_counts()
        self._uses = UseRecorder(folder.path)

    def run(self) -> JobOutcome:
        """Run the job. Whatever happens, no worker is left when this returns."""
        with ExitStack() as owned:
            owned.callback(self._crew.selector.close)
            owned.callback(self._write_status)
            owned.callback(self._end_workers)
            self._start(owned)
            try:
                while self._ending.outcome is None:
                    self._turn()
            except Exception:  # a bug here, which another coordinator would have, too: the workers write a checkpoint
                self._ending.end(JobOutcome(1))
                self._on_tick = lambda: None
                self._crew.send(self._crew.workers, messages.NoSuccessor())
                self._crew.cut_lines()
                self._wait_for_workers(2 * self._job.patience_seconds)
                raise
            if self.verdicts.texts:
                self._print(self.verdicts.note_at_the_end)
        return self._ending.outcome

    def _turn(self) -> None:
        now = time.monotonic()
        self._pump(TICK_SECONDS)
        self._listener.tick()
        self._crew.beat(self._job.patience_seconds / BEATS)
        self._handle(on.TimePassed(), now)
        self._crew.end_unreported(self._job.patience_seconds)
        # A worker that starts, or one on another machine, may hang where no other waits for it in a collective.
        self._crew.kill_silent((*self.roster.starting, *self._crew.guests), self._job.patience_seconds)
        self._crew.kill_left_behind(self._job.patience_seconds * (1 if self.roster.suspects_a_worker else 2))
        self._give_up_hanging(now)
        self._requests.follow_up(now)
        self._write_status()
        self._uses.write(self._crew.workers, now)

    def status(self) -> JobStatus:
        """What ``vf status`` shows of the membership."""
        places = {device: self._crew.place_of(worker) for device, worker in self._crew.workers.items()}
        return status_of(
            self.roster,
            self._ending,
            self.verdicts,
            places,
            self._counts_before,
            overran_waves=self.balancing.overran_waves,
        )

    def move(self, devices: Sequence[str]) -> None:
        """Continue with exactly these devices."""
        self._requests.move(devices)

    def resize(self, count: int) -> None:
        """Continue with *count* devices: the present ones first, then new ones."""
        self._requests.resize(count)

    def stop(self, *, checkpoint: bool) -> None:
        """End the job, with a checkpoint to continue from if one is wanted."""
        self._requests.stop(checkpoint=checkpoint)

    @property
    def was_stopped(self) -> bool:
        """Whether the job has ended because that was wanted, not by itself."""
        return self._ending.was_stopped

    @property
    def was_preempted(self) -> bool:
        """Whether it was stopped because all of its workers got a preemption notice."""
        return self._ending.was_preempted

    def notice(self, signal_number: int) -> bool:
        """Stop with a checkpoint, soon; return whether there is something to save.

        This is for signal handlers, which may come in the middle of anything.
        """
        return self._requests.notice(signal_number)

    # Starting workers

    def _start(self, owned: ExitStack) -> None:
        self._began = time.monotonic()
        if self._found is not None:
            self._take_over(self._found)
            self._listener.listen_for_verbs(self._folder, owned)
            try:
                self._listen_for_workers(owned)
            except LaunchError as error:  # the job goes on with those that it has
                _log.warning("no worker from another launcher can join any more: %s", error)
            return
        self._backend.check(self._job.devices)
        try:
            self._starting.check_files()
        except LaunchError as error:
            self._ending.fail(CHANGED, f"{error}\n")
            return
        self._listener.listen_for_verbs(self._folder, owned)
        self._listen_for_workers(owned)
        for device in self._job.devices:
            self._starting.start_first(device, self._host, self._pump)

    def _listen_for_workers(self, owned: ExitStack) -> None:
        if self._job.listen is not None:
            self._host, port = parse_address(self._job.listen)
            own = identity.chosen(self._job.tls_cert, self._job.tls_key)
            self._listener.listen_for_workers(self._host, port, Path(self._job.token_file or ""), own, owned)

    def _take_over(self, found: FoundJob) -> None:
        """Go on with the workers that the last coordinator has left, and with what its last word was."""
        last = self._folder.read_state()
        self._ending.preempted |= set(last.preempted)
        self.verdicts.take_over(last.drained, last.corruption)
        for worker in found.workers:
            self._crew.adopt(worker.report.device, worker.pid, worker.connection, worker.report.outputs)
        # Nobody here can start workers in the place of guests; those have lost their line, and join again.
        no_more = (*last.guests, *last.drained)
        wanted = tuple(device for device in last.wanted or self._job.devices if device not in no_more)
        self._handle(on.JobTakenOver(found.standing, wanted))
        for device in last.drained:
            self._crew.kill(device)
        if last.asked and not self._ending.is_over:
            self._requests.take(messages.StopJob(checkpoint=True))

    def _start_joiner(self, device: str) -> None:
        try:
            self._starting.start_joiner(device, self._host)
        except (OSError, NotReadyError) as error:  # no free descriptor, or no fork server yet: a later try may work
            _log.info("no worker can be started for device %s now: %s", device, error)
            self._handle(on.StartPostponed(device, time.monotonic() + RETRY_SECONDS))

    def _admit(self, wire: Wire[FromWorker], host: str, pid: int) -> None:
        """Accept a worker that another launcher has started."""
        self._starting.check_files()
        device = self._crew.new_guest_name(host)
        self._handle(on.WorkerOffered(device))  # may refuse, before anything is known of the worker here
        self._starting.admit(device, self._host, wire, host, pid)

    # What comes in: requests of verbs, and what the crew reports

    def _on_request(self, request: JobRequest) -> JobStatus:
        self._requests.take(request)
        self._write_status()  # before it is answered: if this process dies, the next one reads there what is wanted
        return self.status()

    def on_message(self, worker: Worker, message: FromWorker) -> None:
        """A worker has sent a message."""
        device = worker.device
        match message:
            case messages.ReadyToJoin():
                self._handle(on.JoinerReady(device))
            case messages.HoldsState():
                self._handle(on.StateReceived(device))
            case messages.FormedGroup(number):
                self._handle(on.GroupFormed(device, number))
            case messages.PeerLost(number):
                self._handle(on.LossReported(device, number))
            case messages.FirstLoopLeft():
                self._handle(on.JoiningClosed())
            case messages.ShrinkJob(count):
                self._handle(on.ShrinkWanted(count))
            case messages.ScriptFinished():
                self._handle(on.ScriptEnded(device))
            case messages.Leaving():
                self._ending.preempted.add(device)
                self._handle(on.LeaveNoticed(device))
            case messages.JoinRefused(reason):
                self._refuse(worker, reason)
            case messages.TrainerMade():
                self._script_seconds = min(self._script_seconds, time.monotonic() - self._began)
                self._solve_mapping(message)
            case messages.StepTime():
                if (better := self.balancing.on_step_time(device, message)) is not None:
                    self._handle(better)
            case messages.ResourceUse(use):
                self._uses.note(device, use)
            case messages.VerdictReached():
                self._note_verdict(message)
            case messages.ExchangeWorker():
                if why_not := self._exchange.plan(message, self.roster, typed=self.balancing.typed):
                    self._print(why_not)
            case messages.GroupPost() | messages.GroupLetters():
                self._post_office.take(device, message)
            case messages.EarlyResult():
                self._starting.keep(message)
            case messages.WorkerFailed(failure):
                worker.failure = failure
            case messages.ModuleLoaded(file, name, source):
                self._end_if_changed(device, self._running_program.module_loaded(file, name, source))
            case messages.FileRead(file, digest):
                self._end_if_changed(device, self._running_program.file_read(file, digest))
            case messages.FileWritten(file):
                self._running_program.file_written(file)
            case _:
                assert_never(message)

    def on_output(self, worker: Worker, stream: str, data: bytes) -> None:
        """A worker has written to its stdout or stderr."""
        self._sink.write(worker.device, stream, data, lead=self._is_lead(worker))

    def on_exit(self, worker: Worker, code: int) -> None:
        """A worker has ended with this exit code, or by the signal of this negative number."""
        if worker.guest_of:
            self._handle(on.DeviceWithdrawn(worker.device))
        failure = worker.failure
        if self._ending.is_over:
            return
        has_failed = code > 0 or (failure is not None and not failure.consequence)
        if has_failed and worker.device in self.roster.starting:  # its script never came to where the job is
            self._refuse(worker, failure.text if failure is not None else worker.stderr_tail.decode(errors="replace"))
            self._handle(on.WorkerGone(worker.device))
        elif failure is not None and not failure.consequence:
            self._ending.end(JobOutcome(code or 1, failure))
        elif code > 0:
            self._ending.end(JobOutcome(code, failure or Failure(worker.device, EXIT, self._unseen_stderr(worker))))
        elif code != 0 or not (self._ending.is_stopping or worker.leaving):
            _log.warning("device %s: its worker was lost (%s)", worker.device, signal_name(-code))
            self._ending.note_loss(worker.device, code)
            self._handle(on.WorkerGone(worker.device))
        if self._ending.is_stopping and not self._crew.workers:
            self._ending.end(JobOutcome(0)) if code == 0 else self._ending.abandon("The job was about to stop.")

    def _give_up_hanging(self, now: float) -> None:
        """Give up joiners that never reach the job's loop, although a thread of theirs still sends heartbeats."""
        limit = max(JOIN_PATIENCES * self._job.patience_seconds, JOIN_TIMES * self._script_seconds)
        for device in list(self.roster.starting):
            worker = self._crew.workers.get(device)
            if worker is not None and now - worker.started_at > limit:
                self._refuse(worker, LATE_JOINER.format(limit))
                self._crew.kill(device)

    def _refuse(self, worker: Worker, reason: str) -> None:
        """A worker can't join. Only that worker ends: the others continue."""
        self._print(f"device {worker.device} can't join: {reason.strip()}")
        self._handle(on.DeviceWithdrawn(worker.device))

    def on_leftovers(self, worker: Worker, commands: Sequence[str]) -> None:
        """A worker that has ended had left processes behind; they were ended, too."""
        self._print(f"device {worker.device}: processes that its script left behind were ended: {'; '.join(commands)}")

    def _solve_mapping(self, trainer: messages.TrainerMade) -> None:
        try:
            for event in self.balancing.on_trainer(trainer):
                self._handle(event)
        except MappingError as error:
            self._ending.fail(NO_MAPPING, f"{error}\n")

    def _end_if_changed(self, device: str, conflict: str | None) -> None:
        if conflict is not None:
            self._ending.fail(CHANGED, f"{conflict}Start the job again.\n", device)

    def _note_verdict(self, found: messages.VerdictReached) -> None:
        if not self.verdicts.note(found):
            return
        self._print(f"sentinel: step {found.step}: {found.text}")
        if found.drained:
            self._handle(on.DeviceWithdrawn(found.device))
            self._crew.kill(found.device)

    def _is_lead(self, worker: Worker) -> bool:
        return worker.device == self.roster.generation.devices[0]

    def _unseen_stderr(self, worker: Worker) -> str:
        """Why a script has called sys.exit, if only a worker printed that whose output is not shown."""
        shown = (other.stderr_tail for other in self._crew.workers.values() if self._is_lead(other))
        if self._is_lead(worker) or worker.stderr_tail in shown:
            return ""
        return worker.stderr_tail.decode(errors="replace")

    # What goes out

    def _handle(self, event: on.RosterEvent, now: float | None = None) -> None:
        self._carry_out(self.roster.handle(event, time.monotonic() if now is None else now))
        self._ending.is_stopping |= self.roster.stopping and not self._ending.is_over

    def _carry_out(self, actions: list[RosterAction]) -> None:
        for action in actions:
            match action:
                case StartWorker(device):
                    self._start_joiner(device)
                case KillWorker(device, why):
                    if why:
                        _log.warning("device %s is ended: %s", device, why)
                    self._crew.kill(device)
                case PublishGeneration(generation):
                    self._note_published(generation)
                case ReleaseWorker(device):
                    self._crew.release(device)
                case FinishJob():
                    self._finish()
                case AbandonJob(reason):
                    self._ending.abandon(reason)
                case _:
                    assert_never(action)

    def _note_published(self, generation: Generation) -> None:
        """It is sent in this turn. A loss replaces what is not sent yet: of many deaths at once, the last counts."""
        if generation.cause == Cause.LOSS:
            self._published.clear()
        self._published.append(generation)

    def _send_published(self) -> None:
        while self._published:
            self._crew.send(self._crew.workers, messages.NewGeneration(self._published.pop(0)))

    def _finish(self) -> None:
        self._crew.send(self._crew.workers, messages.AllFinished())
        self._ending.is_stopping = False  # even if a stop was requested: the script has ended by itself
        if self._exchange.is_planned:
            self._print(exchange.CAME_TOO_LATE)
        self._ending.end(JobOutcome(0))

    def _print(self, text: str) -> None:
        """Print a line where the job was started."""
        self._sink.write(self.roster.generation.devices[0], "stderr", f"{text}\n".encode(), lead=True)

    def _write_status(self) -> None:
        status = self.status()
        if status != self._written:
            with suppress(OSError):  # a full disk ends no job; it is tried again
                self._folder.write_state(status)
                self._written = status

    def _pump(self, timeout_seconds: float) -> None:
        self._send_published()
        self._crew.pump(timeout_seconds)
        self._send_published()
        self._post_office.deliver()
        self._on_tick()

    def _end_workers(self) -> None:
        """End every worker that still runs; those whose script has ended go by themselves."""
        outcome = self._ending.outcome
        finished = outcome is not None and outcome.code == 0 and not self._ending.is_stopping
        self._ending.end(JobOutcome(1))
        for signal_number, seconds in ((signal.SIGINT, GRACE_SECONDS), (signal.SIGKILL, 5.0)):
            if not (finished and signal_number == signal.SIGINT):
                self._crew.signal_all(signal_number)
            self._wait_for_workers(seconds)

    def _wait_for_workers(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._crew.is_empty and time.monotonic() < deadline:
            with suppress(Exception):  # nothing keeps it from seeing to the others
                self._pump(0.05)
