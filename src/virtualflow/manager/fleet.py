"""The jobs that run under a manager, as their folders show them: launched, watched, moved and stopped.

A job is known by the lock on its folder and the token of its launch, never by a process id: so a manager finds the jobs
that another one has started.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from virtualflow.core.job_state import JobState
from virtualflow.errors import DamagedError, LaunchError, UnreachableError
from virtualflow.events import STREAM
from virtualflow.job import control, launch
from virtualflow.job.device_use import UseReader, Uses
from virtualflow.job.folder import JobFolder, JobSpec
from virtualflow.job.history import Watch
from virtualflow.job.output import LEAD_LOG
from virtualflow.job.status import JobStatus
from virtualflow.job.wire_messages import GetStatus, JobRequest, MoveJob, StopJob
from virtualflow.manager.hung import Escalation
from virtualflow.manager.lifecycle import HowEnded
from virtualflow.system.home import home

ASK_AGAIN_SECONDS = 1.0  # a coordinator that starts or ends does not answer
ANSWER_SECONDS = 10.0  # one that is there does, soon; a thread of its own waits for it
MAX_ASKED = 64  # coordinators at a time
PING_SECONDS = 30.0  # between two looks whether a coordinator is still in its right mind
LAST_LINES = 12  # of a traceback, or of what a script has printed
MAX_BYTES = 1 << 14  # of them

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class End:
    """How a job's coordinator and workers came to be gone."""

    how: HowEnded
    text: str = ""
    lost: tuple[str, ...] = ()  # devices that were taken from it meanwhile


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a job was submitted, and so runs."""

    interpreter: str
    directory: str
    environment: Mapping[str, str]


class Process(Protocol):
    """What is to be known of a coordinator's process, as ``subprocess.Popen`` has it."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def kill(self) -> None: ...


class Launcher(Protocol):
    """Starts a coordinator for a launch, as ``launch.start`` does."""

    def __call__(
        self,
        folder: JobFolder,
        token: str,
        *,
        interpreter: str,
        directory: str | None,
        environment: Mapping[str, str] | None,
    ) -> Process: ...


@dataclass(slots=True)
class _Running:
    """What is known of a job that runs."""

    holds: tuple[str, ...]  # the devices that its workers are on, or will be
    target: tuple[str, ...] | None  # where its coordinator was last sent, as it has confirmed
    asked: float  # when it was last asked something
    unconfirmed: tuple[str, ...] = ()  # where it was sent, though it has not answered
    status: JobStatus | None = None  # as its coordinator wrote it last
    use: Uses = field(default_factory=dict)  # what its workers use of their machines
    process: Process | None = None  # its coordinator, if this manager has started it
    written: tuple[int, int] | None = None  # the state that was read last
    request: tuple[JobRequest, Future[JobStatus]] | None = None  # a request that is under way
    ask_after: float = 0.0
    stopped: bool | None = None  # whether it was asked to stop with a checkpoint, or without; None: not at all
    silent_since: float | None = None  # the first request of those that it has not answered
    ending: Escalation | None = None  # it does not answer, or does not go: it is being ended
    leaves_since: float | None = None  # its process is there, though it has let go of its lock


class Fleet:
    """Every method is about one job by its id, and costs the same however many there are.

    None of them waits for a coordinator. One that does not answer within *answer_seconds* is asked again later; one
    that is silent for four times *patience_seconds* is ended.
    """

    def __init__(
        self,
        patience_seconds: float = 30.0,
        launcher: Launcher = launch.start,
        clock: Callable[[], float] = time.monotonic,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._jobs: dict[str, _Running] = {}
        self._folders: dict[str, JobFolder] = {}
        self._watches: dict[str, Watch] = {}
        self._use_readers: dict[str, UseReader] = {}
        self._patience_seconds = patience_seconds
        self._launcher = launcher
        self._clock = clock
        self._answer_seconds = answer_seconds
        self._askers = ThreadPoolExecutor(MAX_ASKED, thread_name_prefix="ask")

    def folder(self, job_id: str) -> JobFolder:
        if job_id not in self._folders:
            self._folders[job_id] = JobFolder(home() / "jobs" / job_id)  # many paths: not made anew at every look
        return self._folders[job_id]

    def watch(self, job_id: str) -> Watch:
        """How far a job has come, as of the last look."""
        if job_id not in self._watches:
            self._watches[job_id] = Watch(self.folder(job_id).path / STREAM)
            self._watches[job_id].read()
        return self._watches[job_id]

    def status(self, job_id: str) -> JobStatus | None:
        """What the job's coordinator last wrote of itself, if it runs and has written something."""
        return self._jobs[job_id].status if job_id in self._jobs else None

    def use(self, job_id: str) -> Uses:
        """What the job's workers use of their machines, as of the last look."""
        return self._jobs[job_id].use if job_id in self._jobs else {}

    def holds(self, job_id: str) -> tuple[str, ...]:
        """The devices that the job's workers are on."""
        return self._jobs[job_id].holds if job_id in self._jobs else ()

    def is_settled(self, job_id: str, devices: Collection[str]) -> bool:
        """Whether the job is on just these devices, and was sent to no others."""
        job, wanted = self._jobs[job_id], set(devices)
        return set(job.holds) == wanted == set(job.target or ()) and not job.unconfirmed

    def taken(self, but_for: Collection[str | None]) -> set[str]:
        """Devices that jobs are on, or are sent to."""
        return {
            device
            for job_id, job in self._jobs.items()
            if job_id not in but_for
            for device in (*job.holds, *(job.target or ()), *job.unconfirmed)
        }

    def prepare(self, job_id: str, spec: JobSpec) -> str | None:
        """Write a launch of the job; return its token. None if a coordinator runs it already."""
        folder = self.folder(job_id)
        if folder.is_locked():
            return None
        try:
            token = launch.prepare(folder, folder.latest_checkpoint())
        except LaunchError:
            return None
        folder.change(spec)
        self._jobs[job_id] = _Running(spec.devices, spec.devices, self._clock())
        return token

    def start(self, job_id: str, token: str, origin: Origin) -> None:
        """Make the launch with *token*."""
        self._jobs[job_id].process = self._launcher(
            self.folder(job_id),
            token,
            interpreter=origin.interpreter,
            directory=origin.directory,
            environment={**origin.environment, "VF_HOME": str(home())},
        )

    def adopt(self, job_id: str, devices: Collection[str]) -> None:
        """Another manager has launched this job; until its state is read, it is where that one wanted it to begin.

        If the folder does not show where that was, it is on *devices*.
        """
        try:
            began = self.folder(job_id).spec().devices
        except (OSError, DamagedError):
            began = ()
        self._jobs[job_id] = _Running(began or tuple(devices), None, self._clock())

    def look(self, job_id: str) -> End | None:
        """See how a job is doing; return how it has ended, if it has. Raises OSError if that can't be read now."""
        folder, job = self.folder(job_id), self._jobs[job_id]
        self._take_answer(job)
        pending = folder.launch.exists()  # asked before the lock, under which a launch is taken: one of both is seen
        if folder.is_locked():
            self._look_at_running(job_id, folder, job)
            return None
        if pending:
            if job.process is not None and job.process.poll() is None:
                return None
            if not launch.withdraw(folder):
                return None  # it has come after all
            if job.process is None:  # that manager has died before, or the coordinator that it has started
                return End(HowEnded.NOT_LAUNCHED)
            killed = (job.process.poll() or 0) <= 0  # one that ends well without a word has not found its launch
            text = f"its coordinator could not be started:\n{_last_lines(folder.path / launch.LOG)}"
            return End(HowEnded.CRASHED if killed else HowEnded.FAILED, text)
        if job.process is not None and not self._has_left(job_id, job, job.process):
            return None
        self.watch(job_id).read()
        return _end_of(folder)

    def _look_at_running(self, job_id: str, folder: JobFolder, job: _Running) -> None:
        if (written := folder.state_written()) != job.written:  # most looks find nothing new, and cost little
            if (status := folder.read_state()).state != JobState.UNKNOWN:  # what is damaged is written again soon
                job.status = status
            job.written = written
        self.watch(job_id).read()
        if job_id not in self._use_readers:
            self._use_readers[job_id] = UseReader(folder.path)
        job.use = self._use_readers[job_id].read()
        if job.status is not None and (devices := job.status.devices):
            job.holds = devices
            job.target = job.target or job.status.wanted or devices
        now = self._clock()
        if now > job.asked + (PING_SECONDS if job.silent_since is None else ASK_AGAIN_SECONDS):
            self._ask(job_id, GetStatus())
        if job.silent_since is not None and now > job.silent_since + 4 * self._patience_seconds:
            if job.ending is None:
                job.ending = Escalation(folder, self._patience_seconds)
            job.ending.go_on(now)

    def _has_left(self, job_id: str, job: _Running, process: Process) -> bool:
        """Whether the coordinator's process has ended, as it does soon after it has let go of its lock."""
        if process.poll() is not None:
            return True
        now = self._clock()
        job.leaves_since = job.leaves_since or now
        if now > job.leaves_since + self._patience_seconds:
            _log.warning(
                "job %s: its coordinator has done its work and does not end: SIGKILL to %d", job_id, process.pid
            )
            process.kill()
        return False

    def forget(self, job_id: str) -> None:
        """A job has ended."""
        del self._jobs[job_id]
        self._use_readers.pop(job_id, None)
        self._folders.pop(job_id, None)

    def move(self, job_id: str, devices: tuple[str, ...]) -> None:
        """Let the job go on with just these devices."""
        if set(devices) != set(self._jobs[job_id].target or ()):
            self._ask(job_id, MoveJob(devices))

    def stop(self, job_id: str, *, checkpoint: bool) -> None:
        """Stop the job. It is asked once, because the time that it has for its checkpoint begins anew each time."""
        if self._jobs[job_id].stopped != checkpoint:
            self._ask(job_id, StopJob(checkpoint))

    def _ask(self, job_id: str, request: JobRequest) -> None:
        """Ask the coordinator, one thing at a time. A later look takes its answer."""
        job = self._jobs[job_id]
        now = self._clock()
        if job.request is not None or now < job.ask_after:
            return
        job.asked = now
        job.unconfirmed = (*job.unconfirmed, *(request.devices if isinstance(request, MoveJob) else ()))
        job.request = request, self._askers.submit(control.ask, self.folder(job_id), request, self._answer_seconds)

    def _take_answer(self, job: _Running) -> None:
        """Take in what the coordinator has answered, if it has."""
        if job.request is None or not job.request[1].done():
            return
        (request, answer), job.request = job.request, None
        error = answer.exception()
        if error is None or not isinstance(error, LaunchError | OSError):
            answer.result()  # raises what is no matter of the coordinator's
            job.silent_since, job.ending, job.unconfirmed = None, None, ()
            if isinstance(request, MoveJob):
                job.target = request.devices
            elif isinstance(request, StopJob):
                job.stopped = request.checkpoint
            return
        job.ask_after = self._clock() + ASK_AGAIN_SECONDS
        if not isinstance(error, UnreachableError | OSError):  # it has refused
            job.silent_since, job.ending, job.unconfirmed = None, None, ()
            return
        starts = job.status is None or job.status.state == JobState.STARTING
        if not starts or isinstance(request, StopJob) or isinstance(error.__cause__, TimeoutError | BlockingIOError):
            # It hangs, or it is gone and something that it has left behind holds its lock.
            job.silent_since = job.silent_since or job.asked


def _end_of(folder: JobFolder) -> End:
    try:
        status = folder.written_state()
    except FileNotFoundError:
        return End(HowEnded.UNCLEAR, f"it has ended, and how is not known: {folder.path / 'state.json'} is gone")
    except DamagedError as error:
        return End(HowEnded.UNCLEAR, f"it has ended, and how is not known: {error}")
    if status.state == JobState.DONE:
        return End(HowEnded.DONE)
    if status.state == JobState.FAILED and folder.failure.exists():
        text = _last_lines(folder.failure) or _last_lines(folder.path / "logs" / LEAD_LOG)
        # Workers that were killed are no fault of the script's.
        return End(
            HowEnded.CRASHED if status.lost else HowEnded.FAILED,
            text or "the script ended with an error, and printed nothing",
        )
    if status.state in (JobState.DONE, JobState.CANCELLED) and status.asked:
        return End(HowEnded.STOPPED)
    return End(HowEnded.CRASHED, _last_lines(folder.path / launch.LOG), status.preempted)


def _last_lines(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - MAX_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.strip().splitlines()[-LAST_LINES:])
