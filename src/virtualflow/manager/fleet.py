"""The jobs that run under a manager, as their folders tell of them: launched, watched, moved and stopped.

A job is known by the lock on its folder and the token of its launch, never by a process id: so a manager finds the jobs
that another one has started.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from virtualflow.errors import DamagedError, LaunchError, UnreachableError
from virtualflow.events import STREAM
from virtualflow.job import control, launch
from virtualflow.job.folder import ENDED, UNKNOWN, JobFolder, JobSpec
from virtualflow.job.history import Watch
from virtualflow.job.output import LEAD_LOG
from virtualflow.manager.hung import Ending
from virtualflow.system.home import home

ASK_AGAIN_SECONDS = 1.0  # a coordinator that starts or ends does not answer
ANSWER_SECONDS = 10.0  # one that is there does, soon; a thread of its own waits for it
MOST_ASKED = 64  # coordinators at a time
PING_SECONDS = 30.0  # between two looks whether a coordinator is still in its right mind
LAST_LINES = 12  # of a traceback, or of what a script has said
MOST_BYTES = 1 << 14  # of them

DONE, FAILED, STOPPED, CRASHED, NOT_MADE = "done", "failed", "stopped", "crashed", "not made"
UNCLEAR = "unclear"  # it is gone, and what it has left does not say how: somebody has to decide


@dataclass(frozen=True, slots=True)
class End:
    """How a job's coordinator and workers came to be gone."""

    how: str
    text: str = ""
    lost: tuple[str, ...] = ()  # devices that were taken from it meanwhile


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where a job was submitted, and so runs."""

    interpreter: str
    directory: str
    environment: Mapping[str, str]


@dataclass(slots=True)
class _Running:
    """What is known of a job that runs."""

    holds: tuple[str, ...]  # the devices that its workers are on, or will be
    told: tuple[str, ...] | None  # where it was last told to be
    unsure: tuple[str, ...] = ()  # where it was told to be, though nobody knows whether it has heard that
    state: dict[str, Any] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None  # its coordinator, if this manager has started it
    written: tuple[int, int] | None = None  # the state that was read last
    errand: tuple[dict[str, Any], Future[dict[str, Any]]] | None = None  # a request that is under way
    asked: float = field(default_factory=time.monotonic)  # when it was last asked something
    ask_after: float = 0.0
    stopped: bool | None = None  # whether it was told to stop with a checkpoint, or without
    silent_since: float | None = None  # the first request of those that it has not answered
    ending: Ending | None = None  # it does not answer, or does not go: it is being ended
    leaves_since: float | None = None  # its process is there, though it has let go of its lock


class Fleet:
    """Every method is about one job by its id, and costs the same however many there are.

    None of them waits for a coordinator. One that is silent for four times *patience_seconds* is ended.
    """

    def __init__(self, patience_seconds: float = 30.0, say: Callable[[str], None] = lambda _: None) -> None:
        self._jobs: dict[str, _Running] = {}
        self._watches: dict[str, Watch] = {}
        self._patience_seconds = patience_seconds
        self._say = say
        self._askers = ThreadPoolExecutor(MOST_ASKED, thread_name_prefix="ask")

    def folder(self, job_id: str) -> JobFolder:
        return JobFolder(home() / "jobs" / job_id)

    def watch(self, job_id: str) -> Watch:
        """How far a job has come, as of the last look."""
        if job_id not in self._watches:
            self._watches[job_id] = Watch(self.folder(job_id).path / STREAM)
            self._watches[job_id].read()
        return self._watches[job_id]

    def state(self, job_id: str) -> dict[str, Any]:
        """What the job's coordinator last told of itself."""
        return self._jobs[job_id].state if job_id in self._jobs else {}

    def holds(self, job_id: str) -> tuple[str, ...]:
        """The devices that the job's workers are on."""
        return self._jobs[job_id].holds if job_id in self._jobs else ()

    def taken(self, but_for: Collection[str | None]) -> set[str]:
        """Devices that jobs are on, or are told to be on."""
        return {
            device
            for job_id, job in self._jobs.items()
            if job_id not in but_for
            for device in (*job.holds, *(job.told or ()), *job.unsure)
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
        self._jobs[job_id] = _Running(spec.devices, spec.devices)
        return token

    def start(self, job_id: str, token: str, where: Surroundings) -> None:
        """Make the launch with *token*."""
        folder = self.folder(job_id)
        self._jobs[job_id].process = launch.start(
            folder,
            token,
            interpreter=where.interpreter,
            directory=where.directory,
            environment={**where.environment, "VF_HOME": str(home())},
        )

    def adopt(self, job_id: str, devices: Collection[str]) -> None:
        """Another manager has launched this job; until it tells more, it is where that one wanted it to begin.

        If the folder can't say where that was, it is on *devices*.
        """
        try:
            began = self.folder(job_id).spec().devices
        except (OSError, DamagedError):
            began = ()
        self._jobs[job_id] = _Running(began or tuple(devices), None)

    def look(self, job_id: str) -> End | None:
        """See how a job is doing; tell if it has ended. Raises OSError if that can't be told now."""
        folder, job = self.folder(job_id), self._jobs[job_id]
        self._hear(job_id, job)
        pending = folder.launch.exists()  # asked before the lock, under which a launch is taken: one of both is seen
        if folder.is_locked():
            self._look_at_running(job_id, folder, job)
            return None
        if pending:
            if job.process is not None and job.process.poll() is None:
                return None
            if not launch.withdraw(folder):
                return None  # it has come after all
            if job.process is None:
                return End(NOT_MADE)  # that manager has died before, or the coordinator that it has started
            killed = job.process.returncode <= 0  # one that ends well without a word has not found its launch
            told = _last_lines(folder.path / launch.LOG)
            return End(CRASHED if killed else FAILED, f"its coordinator could not be started:\n{told}")
        if job.process is not None and not self._has_left(job_id, job, job.process):
            return None
        self.watch(job_id).read()
        return _end_of(folder)

    def _look_at_running(self, job_id: str, folder: JobFolder, job: _Running) -> None:
        if (written := folder.state_written()) != job.written:  # most looks find nothing new, and cost little
            if (state := folder.read_state())["state"] != UNKNOWN:  # what is damaged is written again soon
                job.state = state
            job.written = written
        self.watch(job_id).read()
        if devices := tuple(worker["device"] for worker in job.state.get("workers", ())):
            job.holds = devices
            job.told = job.told or tuple(job.state.get("wanted", devices))
        now = time.monotonic()
        if now > job.asked + PING_SECONDS:
            self._ask(job_id, verb="status")
        if job.silent_since is not None and now > job.silent_since + 4 * self._patience_seconds:
            if job.ending is None:
                job.ending = Ending(folder, self._patience_seconds, self._say)
            job.ending.go_on(now)

    def _has_left(self, job_id: str, job: _Running, process: subprocess.Popen[bytes]) -> bool:
        """Whether the coordinator's process has ended, as it does soon after it has let go of its lock."""
        if process.poll() is not None:
            return True
        now = time.monotonic()
        job.leaves_since = job.leaves_since or now
        if now > job.leaves_since + self._patience_seconds:
            self._say(f"job {job_id}: its coordinator has done its work and does not end: SIGKILL to {process.pid}")
            process.kill()
        return False

    def forget(self, job_id: str) -> None:
        """A job has ended."""
        del self._jobs[job_id]

    def move(self, job_id: str, devices: tuple[str, ...]) -> None:
        """Let the job go on with just these devices."""
        if set(devices) != set(self._jobs[job_id].told or ()):
            self._ask(job_id, verb="move", devices=list(devices))

    def stop(self, job_id: str, *, checkpoint: bool) -> None:
        """Told once, because the time that it has for its checkpoint begins anew each time."""
        if self._jobs[job_id].stopped != checkpoint:
            self._ask(job_id, verb="stop", checkpoint=checkpoint)

    def _ask(self, job_id: str, **request: Any) -> None:
        """Ask the coordinator, one thing at a time. Its answer is heard at a later look."""
        job = self._jobs[job_id]
        now = time.monotonic()
        if job.errand is not None or now < job.ask_after:
            return
        job.asked = now
        job.unsure = (*job.unsure, *request.get("devices", ()))
        job.errand = request, self._askers.submit(control.ask, self.folder(job_id), ANSWER_SECONDS, **request)

    def _hear(self, job_id: str, job: _Running) -> None:
        """Take in what the coordinator has answered, if it has."""
        if job.errand is None or not job.errand[1].done():
            return
        (request, answer), job.errand = job.errand, None
        error = answer.exception()
        if error is None or not isinstance(error, LaunchError | OSError):
            answer.result()  # raises what is no matter of the coordinator's
            job.silent_since, job.ending, job.unsure = None, None, ()
            if request["verb"] == "move":
                job.told = tuple(request["devices"])
            elif request["verb"] == "stop":
                job.stopped = request["checkpoint"]
            return
        job.ask_after = time.monotonic() + ASK_AGAIN_SECONDS
        if not isinstance(error, UnreachableError | OSError):  # it can't, and has said so
            job.silent_since, job.ending, job.unsure = None, None, ()
            return
        starts = job.state.get("state", "STARTING") == "STARTING" and request["verb"] != "stop"
        if not starts or isinstance(error.__cause__, TimeoutError | BlockingIOError):
            # It hangs, or it is gone and something that it has left behind holds its lock.
            job.silent_since = job.silent_since or job.asked


def _end_of(folder: JobFolder) -> End:
    try:
        told = folder.written_state()
    except FileNotFoundError:
        return End(UNCLEAR, f"it has ended, and how is not known: {folder.path / 'state.json'} is gone")
    except DamagedError as error:
        return End(UNCLEAR, f"it has ended, and how is not known: {error}")
    if told["state"] == "DONE":
        return End(DONE)
    if told["state"] == "FAILED" and folder.failure.exists():
        text = _last_lines(folder.failure) or _last_lines(folder.path / "logs" / LEAD_LOG)
        # Workers that were killed are no fault of the script's.
        return End(CRASHED if told.get("lost") else FAILED, text or "the script ended with an error, and said nothing")
    if told["state"] in ENDED and told["state"] != "FAILED" and told.get("asked"):
        return End(STOPPED)
    return End(CRASHED, _last_lines(folder.path / launch.LOG), tuple(told.get("preempted", ())))


def _last_lines(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - MOST_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.strip().splitlines()[-LAST_LINES:])
