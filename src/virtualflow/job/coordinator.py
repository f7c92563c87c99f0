"""The process that owns one job's membership: hears its workers, asks the roster, and carries out what it decides."""

from __future__ import annotations

import json
import logging
import math
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from virtualflow.core.mapping import Mapping
from virtualflow.core.roster import Action, Finish, GiveUp, Kill, Publish, Release, Roster, Start
from virtualflow.errors import CheckpointError, LaunchError, MappingError
from virtualflow.job import balancing, checkpoints
from virtualflow.job.backend import Backend, NotReadyError
from virtualflow.job.balancing import Balancing
from virtualflow.job.crew import Crew, Worker
from virtualflow.job.folder import JobFolder, JobSpec
from virtualflow.job.listener import Reception
from virtualflow.job.output import Sink
from virtualflow.job.spec import Failure, WorkerSpec
from virtualflow.job.tokens import parse_address
from virtualflow.job.wire import BEATS, Wire, generation_to_json
from virtualflow.program.manifest import Record, changed_text, read_modules

GRACE_SECONDS = 2.0  # between asking a worker to end and ending it
TICK_SECONDS = 0.1
AGAIN_SECONDS = 0.5  # before a worker that could not be started is tried again
START_SECONDS = 120.0  # for a process to fork the first ones from
NOTICES = {signal.SIGINT: "\nstopping with a checkpoint; Ctrl-C again stops at once"}
NOTICE = "told to end: stopping with a checkpoint"
LATE_STOP = "the workers did not reach a step boundary in time, so the job was stopped without a new checkpoint\n"

_log = logging.getLogger("virtualflow")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended: the exit code, and what went wrong if something did."""

    code: int
    failure: Failure | None = None
    was_interrupted: bool = False  # by a signal, whose exit code it has then


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
    ) -> None:
        self._job = job
        self._folder = folder
        self._record = Record(folder.snapshot, job.script)
        self._resume_from = resume_from
        self._backend = backend
        self._sink = sink
        self._on_tick = on_tick
        self._crew = Crew(backend, self)
        self._reception = Reception(self._crew.selector, self._obey, self._admit)
        self._results: list[Any] = []  # of the calls that the job has made before its first epoch
        self._outcome: Outcome | None = None
        self._stopping = self._asked_to_stop = False
        self._notice = ""  # what to say when the loop finds that a signal has come
        self._preempted: set[str] = set()  # devices whose workers were told to go, by nobody here
        self._stop_before = math.inf
        self._told = ""
        self._host = backend.address
        self._lost_code, self._lost_text = 1, ""
        self._exchanges: list[tuple[str, ...]] = []  # the devices that the audit still wants the job to go through
        speeds = balancing.speeds_of(job)
        self.roster = Roster(
            job.devices, job.owners, speeds, replace_lost=job.replace_lost, patience_seconds=job.patience_seconds
        )
        self.balancing = Balancing(job, self.roster, speeds, self._say)
        self._counts_before = folder.read_counts()

    def run(self) -> Outcome:
        """Run the job. Whatever happens, no worker is left when this returns."""
        with ExitStack() as owned:
            owned.callback(self._crew.selector.close)
            owned.callback(self._write_state)
            owned.callback(self._stop_all)
            self._start(owned)
            try:
                while self._outcome is None:
                    self._turn()
            except Exception:  # a defect here: the workers go on to a checkpoint, as if this process had been killed
                self._end(Outcome(1))
                self._on_tick = lambda: None
                self._crew.let_go()
                self._await_the_end(2 * self._job.patience_seconds)
                raise
        return self._outcome

    def _turn(self) -> None:
        now = time.monotonic()
        self._pump(TICK_SECONDS)
        self._reception.tick(now)
        self._crew.beat(self._job.patience_seconds / BEATS)
        self._carry_out(self.roster.tick(now))
        self._stopping |= self.roster.stopping
        # Who starts, or is elsewhere, may hang where nobody waits for it in a collective.
        self._crew.end_silent((*self.roster.starting, *self._crew.guests), self._job.patience_seconds)
        if self._exchanges and self.roster.is_settled and not self._stopping:
            self.move(self._exchanges.pop(0))
        self._heed_notice()
        if now > self._stop_before:
            self._end(Outcome(1, Failure("", "late", LATE_STOP, consequence=False)))
        self._write_state()

    def move(self, devices: Sequence[str]) -> None:
        """Go on with just these devices."""
        if self._stopping:
            raise LaunchError("the job is being stopped")
        self._backend.check([device for device in devices if device not in self.roster.guests])
        if not set(devices) <= set(self.roster.generation.devices):
            self._check_files()
        self._carry_out(self.roster.resize(devices, time.monotonic()))
        self._preempted -= set(devices)

    def resize(self, count: int) -> None:
        """Go on with *count* devices: the present ones first, then new ones."""
        if count < 1:
            raise LaunchError(f"a job needs at least one device, not {count}")
        present = self.roster.generation.devices
        known = [device for device in self._job.devices if device not in present]
        more = [str(n) for n in range(4096) if str(n) not in (*present, *known)] if not self.balancing.typed else []
        names = [*present, *known, *more]
        if count > len(names):
            raise LaunchError(f"the job was given {len(names)} devices, so it can't grow to {count}")
        self.move(names[:count])

    def _check_files(self) -> None:
        """Whoever starts now must read what the job has read."""
        if changed := self._record.program.changed():
            raise LaunchError(changed_text(map(self._record.program.shown, changed)))

    def _start(self, owned: ExitStack) -> None:
        self._backend.check(self._job.devices)
        try:
            self._check_files()
        except LaunchError as error:
            self._end(Outcome(1, Failure("", "changed", f"{error}\n", consequence=False)))
            return
        self._reception.open(self._folder, owned)
        if self._job.listen is not None:
            self._host, port = parse_address(self._job.listen)
            self._reception.open_door(self._host, port, Path(self._job.token_file or ""), owned)
        for device in self._job.devices:
            self._start_first(device)

    def _start_first(self, device: str) -> None:
        """Start a worker of the job's first generation, which is there from the beginning or not at all."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self._crew.start(self._spec(device, joins=False))
                return
            except NotReadyError:
                if time.monotonic() > deadline:
                    raise
                self._pump(AGAIN_SECONDS)

    def _spec(self, device: str, *, joins: bool) -> WorkerSpec:
        job = self._job
        return WorkerSpec(
            job_id=job.job_id,
            job_folder=str(self._folder.path),
            device=device,
            devices=self.roster.generation.devices,
            script=job.script,
            arguments=job.arguments,
            address=self._host,
            patience_seconds=job.patience_seconds,
            owners=job.owners,
            threads_per_device=job.threads_per_device,
            device_type=job.device_type,
            audit=job.audit,
            joins=joins,
            emulated=job.emulated.get(device),
            node_sizes=job.node_sizes,
            balances=self.roster.speeds is not None and job.owners is None,
            reports_pace=self.balancing.watches,
            mixed=self.balancing.mixed,
            profiling=job.profiling,
            checkpoint_every=job.checkpoint_every,
            resume_from=str(self._resume_from) if self._resume_from else None,
            hash_seed=job.hash_seed,
        )

    def _pump(self, timeout_seconds: float) -> None:
        self._crew.pump(timeout_seconds)
        self._on_tick()

    def _tell_results(self, worker: Worker) -> None:
        for result in self._results:
            worker.wire.send(result=result)

    def _admit(self, wire: Wire, host: str, pid: int) -> None:
        """Let a worker in that another launcher has started."""
        self._check_files()
        worker = self._crew.admit(wire, host, pid)
        self.roster.offer(worker.device)
        wire.send(spec=self._spec(worker.device, joins=True).to_json(), modules=read_modules(self._folder.snapshot))
        self._tell_results(worker)

    def _obey(self, message: dict[str, Any]) -> dict[str, Any]:
        if message.get("verb") == "resize":
            self.resize(int(message["devices"]))
        elif message.get("verb") == "move":
            self.move([str(device) for device in message["devices"]])
        elif message.get("verb") == "stop":
            checkpoint = bool(message["checkpoint"])
            self._asked_to_stop = True
            self.stop(checkpoint=checkpoint)
        elif message.get("verb") != "status":
            return {"error": f"unknown request {message}"}
        return self.state()

    def state(self) -> dict[str, Any]:
        """What ``vf status`` shows of the membership."""
        roster = self.roster
        # What runs now: a resize that is under way has not happened yet, a loss has.
        lost = roster.pending if roster.pending is not None and roster.pending.cause == "loss" else None
        current = lost or roster.generation
        nodes = Mapping(lost.owners) if lost is not None and lost.owners is not None else roster.mapping
        failure = self._outcome.failure if self._outcome is not None else None
        return {
            "state": self._phase(),
            "generation": current.number,
            "virtual_nodes": nodes.virtual_nodes if nodes is not None else None,
            "workers": [
                self._shown(w, list(nodes.nodes_of(d)) if nodes is not None else [])
                for d, w in sorted(self._crew.workers.items())
                if d in current.devices
            ],
            "wanted": list(roster.target),
            **self._counts(),
            "asked": self._asked_to_stop,
            "preempted": sorted(self._preempted),
            "lost": failure is not None and self._is_no_fault_of_the_script(failure),
            **(
                {"reason": failure.text.strip().splitlines()[-1]}
                if failure is not None and failure.text.strip()
                else {}
            ),
        }

    def _counts(self) -> dict[str, int]:
        """Since the job began, whoever has run it."""
        roster = self.roster
        here = {"resizes": roster.resizes, "failures": roster.failures, "remaps": roster.remaps}
        here["overran_waves"] = self.balancing.overran
        return {name: count + self._counts_before[name] for name, count in here.items()}

    def _shown(self, worker: Worker, nodes: list[int]) -> dict[str, Any]:
        place = self._crew.place_of(worker)
        return {"device": worker.device, "machine": place.machine, "pid": place.pid, "virtual_nodes": nodes}

    def _is_no_fault_of_the_script(self, failure: Failure) -> bool:
        """Whether the job may go on where its last checkpoint is: workers were killed, or a disk is full or failing."""
        if failure.kind == CheckpointError.__name__:
            return self._stopping or checkpoints.is_damaged(self._folder, self._resume_from)
        return failure.kind in ("lost", "late")

    def _say(self, text: str) -> None:
        """Tell whoever started the job."""
        self._sink.write(self.roster.generation.devices[0], "stderr", f"{text}\n".encode(), lead=True)

    def _phase(self) -> str:
        if self._outcome is not None:
            return "FAILED" if self._outcome.code else "CANCELLED" if self._stopping else "DONE"
        if self.roster.mapping is None:
            return "STARTING"
        return "RUNNING" if self.roster.is_settled else "RESIZING"

    def _write_state(self) -> None:
        state = self.state()
        if (text := json.dumps(state)) != self._told:
            try:
                self._folder.write_state(state)
                self._told = text
            except OSError:
                pass  # a full disk ends no job; it is tried again

    @property
    def was_stopped(self) -> bool:
        """Whether the job has ended because that was wanted, not by itself."""
        failure = self._outcome.failure if self._outcome is not None else None
        return self._stopping and (failure is None or failure.kind == "late")

    @property
    def was_preempted(self) -> bool:
        """Whether it was stopped because all of its workers were told to go, by nobody here."""
        return self.was_stopped and bool(self._preempted) and not self._asked_to_stop

    def notice(self, signal_number: int) -> bool:
        """Stop with a checkpoint, soon; return whether there is something to save.

        This is for signal handlers, which may come in the middle of anything.
        """
        if self._outcome is None and (self.roster.mapping is None or self._job.profiling is not None):
            return False
        self._notice = NOTICES.get(signal.Signals(signal_number), NOTICE)
        return True

    def _heed_notice(self) -> None:
        if not self._notice or self._outcome is not None:
            return
        self._say(self._notice)
        self._notice = ""
        if not self._stopping:
            self.stop(checkpoint=True)

    def stop(self, *, checkpoint: bool) -> None:
        """End the job, with a checkpoint to go on from if one is wanted."""
        self._stopping = True
        if checkpoint and self.roster.mapping is not None:
            self._stop_before = time.monotonic() + 2 * self._job.patience_seconds
            self._carry_out(self.roster.stop(time.monotonic()))
        else:
            self._end(Outcome(0))

    def heard(self, worker: Worker, message: dict[str, Any]) -> None:
        """A worker has told something."""
        now, device = time.monotonic(), worker.device
        actions: list[Action] = []
        if (text := self._record.hear(message)) is not None:
            self._end(Outcome(1, Failure(device, "changed", f"{text}Start the job again.\n", consequence=False)))
        if "refused" in message:  # only this worker: the others go on
            self._say(f"device {device} can't join: {message['refused']}")
            self.roster.withdraw(device)
        if "failure" in message:
            worker.failure = Failure.from_json(message["failure"])
        if "node_sizes" in message:
            try:
                actions = self.balancing.sizes_known(message["node_sizes"], message["parameters"])
            except MappingError as error:
                self._end(Outcome(1, Failure("", "mapping", f"{error}\n", consequence=False)))
        if "pace" in message:
            actions = self.balancing.note(device, message)
        if "exchange" in message:
            self._plan_exchange(message["exchange"])
        if "closed" in message:
            actions = self.roster.close()
        if "ready" in message:
            actions = self.roster.ready(device, now)
        if "holding" in message:
            self.roster.holds_state(device)
        if "formed" in message:
            actions = self.roster.has_formed(device, message["formed"], now)
        if "lost" in message:
            actions = self.roster.reports_loss(device, message["lost"], now)
        if "shrink" in message:
            actions = self.roster.shrink(message["shrink"], now)
        if "leaving" in message:
            actions = self.roster.leaves(device, now)
            self._preempted.add(device)
            self._stopping |= self.roster.stopping
        if "done" in message:
            actions = self.roster.ended(device, now)
        if "meet" in message:
            self._pass_on(device, message["meet"])
        if "result" in message:
            self._keep_result(message["call"], message["result"])
        self._carry_out(actions)

    def _pass_on(self, device: str, meet: Sequence[str]) -> None:
        """A worker has something to tell the others of a group that forms: nobody else hears of it, or is believed."""
        members = self.roster.members_of(meet[0])
        for other in members if device in members else ():
            if other != device and other in self._crew.workers:
                self._crew.workers[other].wire.send(meet=meet)

    def _plan_exchange(self, device_type: str) -> None:
        """For the audit: a worker leaves and another joins in its place, which runs the script from the top."""
        devices, nodes = self.roster.generation.devices, len(self.roster.node_sizes)
        if self.roster.closed or self.roster.guests:
            self._say("audit: no worker can join this job, so none was replaced")
        elif len(devices) > 1:
            self._exchanges = [devices[:-1], devices]
        elif nodes > 1 and device_type == "cpu" and not self.balancing.typed:
            self._exchanges = [(*devices, "1" if devices[0] == "0" else "0")]
        else:
            self._say("audit: there is no second device for a worker to join, so none was exchanged")

    def _keep_result(self, call: int, result: Any) -> None:
        """Every worker tells, so that none is missed when one is lost; the first to do so is believed."""
        if call == len(self._results):
            self._results.append(result)
            for device in self.roster.starting & self._crew.workers.keys():
                self._crew.workers[device].wire.send(result=result)

    def wrote(self, worker: Worker, stream: str, data: bytes) -> None:
        """A worker has written to its stdout or stderr."""
        self._sink.write(worker.device, stream, data, lead=self._is_lead(worker))

    def ended(self, worker: Worker, code: int) -> None:
        """A worker has ended with this exit code, or by the signal of this negative number."""
        if worker.guest_of:
            self.roster.withdraw(worker.device)
        failure = worker.failure
        if self._outcome is not None:
            return  # the job is over anyway
        if failure is not None and not failure.consequence:
            self._end(Outcome(code or 1, failure))
        elif code > 0:
            self._end(
                Outcome(code, failure or Failure(worker.device, "exit", self._unheard(worker), consequence=False))
            )
        elif code != 0 or not (self._stopping or worker.leaving):
            self._lost_code = 128 - code if code else 1
            self._lost_text = _signal_advice(worker.device, -code) if code else ""
            self._carry_out(self.roster.gone(worker.device, time.monotonic()))
        if self._stopping and not self._crew.workers:
            lost = Failure("", "lost", f"{self._lost_text}The job was about to stop.\n", consequence=False)
            self._end(Outcome(0) if code == 0 else Outcome(self._lost_code, lost))

    def _is_lead(self, worker: Worker) -> bool:
        return worker.device == self.roster.generation.devices[0]

    def _unheard(self, worker: Worker) -> str:
        """Why a script has called sys.exit, where only a worker said so whose output nobody sees."""
        heard = (w.last_words for w in self._crew.workers.values() if self._is_lead(w))
        if self._is_lead(worker) or worker.last_words in heard:
            return ""
        return worker.last_words.decode(errors="replace")

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Start):
                self._start_joiner(action.device)
            elif isinstance(action, Kill):
                self._crew.kill(action.device)
            elif isinstance(action, Publish):
                self._crew.tell(generation=generation_to_json(action.generation))
            elif isinstance(action, Release):
                self._crew.release(action.device)
            elif isinstance(action, Finish):
                self._crew.tell(all_done=True)
                self._stopping = False  # whatever was asked for: it has come to its end
                if self._exchanges:
                    self._say("audit: the job came to its end before a worker could be exchanged")
                self._end(Outcome(0))
            elif isinstance(action, GiveUp):
                text = f"{self._lost_text}{action.reason}\n"
                self._end(Outcome(self._lost_code, Failure("", "lost", text, consequence=False)))

    def _start_joiner(self, device: str) -> None:
        try:
            self._tell_results(self._crew.start(self._spec(device, joins=True)))
        except (OSError, NotReadyError) as error:  # no descriptor is left, or no process to fork from: soon there is
            _log.info("no worker can be started for device %s now: %s", device, error)
            self.roster.postpone(device, time.monotonic() + AGAIN_SECONDS)

    def left_behind(self, worker: Worker, commands: Sequence[str]) -> None:
        """A worker that has ended had left processes behind; they were ended, too."""
        self._say(f"device {worker.device}: processes that its script left behind were ended: {'; '.join(commands)}")

    def _end(self, outcome: Outcome) -> None:
        self._outcome = self._outcome or outcome

    def _stop_all(self) -> None:
        """End every worker that still runs; those whose script has ended go by themselves."""
        finished = self._outcome is not None and self._outcome.code == 0 and not self._stopping
        self._end(Outcome(1))
        for signal_number, seconds in ((signal.SIGINT, GRACE_SECONDS), (signal.SIGKILL, 5.0)):
            if not (finished and signal_number == signal.SIGINT):
                self._crew.signal_all(signal_number)
            self._await_the_end(seconds)

    def _await_the_end(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._crew.is_gone and time.monotonic() < deadline:
            with suppress(Exception):  # nothing keeps it from seeing to the others
                self._pump(0.05)


def _signal_advice(device: str, number: int) -> str:
    name = signal.Signals(number).name
    text = f"the worker of device {device} was killed by {name}."
    if number == signal.SIGKILL:
        text += (
            " If it was not killed by hand, the machine ran out of memory: use more virtual nodes (each is then "
            "smaller) or fewer devices on this machine."
        )
    return text + "\n"
