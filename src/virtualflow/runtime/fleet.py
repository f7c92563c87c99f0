"""The jobs that run under a manager, as their folders tell of them: launched, watched, moved and stopped.

A job is known by the lock on its folder and the token of its launch, never by a process id: so a manager finds the jobs
that another one has started.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from virtualflow.core.membership import home
from virtualflow.errors import LaunchError
from virtualflow.events import STREAM
from virtualflow.runtime import control, launch
from virtualflow.runtime.folder import ENDED, JobFolder, JobSpec
from virtualflow.runtime.output import LEAD_LOG
from virtualflow.runtime.watch import Watch

ASK_AGAIN_SECONDS = 1.0  # a coordinator that starts or ends does not answer
ANSWER_SECONDS = 2.0  # one that is there does, soon: all jobs wait for it meanwhile
RARELY = 5  # times as long as the last answer was waited for in vain: then ask again
LAST_LINES = 12  # of a traceback, or of what a script has said
MOST_BYTES = 1 << 14  # of them

DONE, FAILED, STOPPED, CRASHED, NOT_MADE = "done", "failed", "stopped", "crashed", "not made"


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
    state: dict[str, Any] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None  # its coordinator, if this manager has started it
    written: tuple[int, int] | None = None  # the state that was read last
    ask_after: float = 0.0
    stopped: bool | None = None  # whether it was told to stop with a checkpoint, or without


class Fleet:
    """Every method is about one job by its id, and costs the same however many there are."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Running] = {}
        self._watches: dict[str, Watch] = {}

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
            for device in (*job.holds, *(job.told or ()))
        }

    def prepare(self, job_id: str, spec: JobSpec) -> str | None:
        """Write a launch of the job; return its token. None if a coordinator runs it already."""
        folder = self.folder(job_id)
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

    def adopt(self, job_id: str) -> None:
        """Another manager has launched this job; until it tells more, it is where that one wanted it to begin."""
        self._jobs[job_id] = _Running(self.folder(job_id).spec().devices, None)

    def look(self, job_id: str) -> End | None:
        """See how a job is doing; tell if it has ended."""
        folder, job = self.folder(job_id), self._jobs[job_id]
        pending = folder.launch.exists()  # asked before the lock, under which a launch is taken: one of both is seen
        if folder.is_locked():
            if (written := folder.state_written()) != job.written:  # most looks find nothing new, and cost little
                job.state, job.written = folder.read_state(), written
            self.watch(job_id).read()
            if devices := tuple(worker["device"] for worker in job.state["workers"]):
                job.holds = devices
                job.told = job.told or tuple(job.state.get("wanted", devices))
            return None
        if pending:
            if job.process is not None and job.process.poll() is None:
                return None
            if not launch.withdraw(folder):
                return None  # it has come after all
            if job.process is None:
                return End(NOT_MADE)  # that manager has died before, or the coordinator that it has started
            killed = job.process.returncode < 0
            told = _last_lines(folder.path / launch.LOG)
            return End(CRASHED if killed else FAILED, f"its coordinator could not be started:\n{told}")
        if job.process is not None:
            job.process.wait()
        self.watch(job_id).read()
        return _end_of(folder)

    def forget(self, job_id: str) -> None:
        """A job has ended."""
        del self._jobs[job_id]

    def move(self, job_id: str, devices: tuple[str, ...]) -> None:
        """Let the job go on with just these devices."""
        job = self._jobs[job_id]
        if set(devices) == set(job.told or ()) or time.monotonic() < job.ask_after:
            return
        if self._ask(job_id, verb="move", devices=list(devices)):
            job.told = devices

    def stop(self, job_id: str, *, checkpoint: bool) -> None:
        """Told once, because the time that it has for its checkpoint begins anew each time."""
        job = self._jobs[job_id]
        if job.stopped == checkpoint or time.monotonic() < job.ask_after:
            return
        if self._ask(job_id, verb="stop", checkpoint=checkpoint):
            job.stopped = checkpoint

    def _ask(self, job_id: str, **request: Any) -> bool:
        asked = time.monotonic()
        try:
            control.ask(self.folder(job_id), ANSWER_SECONDS, **request)
        except LaunchError:  # it starts, it has just ended, it can't, or it hangs
            now = time.monotonic()
            self._jobs[job_id].ask_after = now + max(ASK_AGAIN_SECONDS, RARELY * (now - asked))
            return False
        return True


def _end_of(folder: JobFolder) -> End:
    told = folder.read_state()
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
