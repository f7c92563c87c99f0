"""A manager for tests: a real ``vf cluster up`` in a folder of its own, with real jobs that files hold back."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cli.test_run import VF, alive
from tests.ending import end_job
from virtualflow.core.job_state import ENDED
from virtualflow.events import STREAM, StepDone, read_events
from virtualflow.job.folder import JobFolder
from virtualflow.manager.client import Client
from virtualflow.program.capture import take

SCRIPT = Path(__file__).parent.parent / "cli" / "job.py"  # 200 steps on 4 virtual nodes
STEPS = 200
PATIENCE_SECONDS = 120.0  # of a test on a busy machine


def until(condition: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
    """What *condition* gives once that is something."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return result


class Service:
    """A manager that can be killed and started again."""

    def __init__(self, home: Path, *options: str, descriptors: int | None = None) -> None:
        self.home = home
        self._options = options
        self._descriptors = descriptors  # how many it may have
        self._process: subprocess.Popen[bytes] | None = None
        self._folders = 0

    def up(self) -> None:
        """Start a manager; return when it answers."""
        (self.home / "cluster").mkdir(parents=True, exist_ok=True)
        (self.home / "cluster" / "address").unlink(missing_ok=True)
        with (self.home / "cluster" / "manager.log").open("ab") as log:
            command = [*VF, "cluster", "up", "--foreground", *self._options]
            if self._descriptors is not None:  # a limit of this process would count what other tests have left open
                command = ["sh", "-c", f'ulimit -n {self._descriptors} && exec "$@"', "sh", *command]
            environment = os.environ | {"VF_HOME": str(self.home)}
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        until((self.home / "cluster" / "address").exists)
        assert self.client.get("/api/devices")

    def kill(self) -> None:
        """As a machine that runs out of memory does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End the manager and all its jobs, however they are."""
        if self._process is not None:
            self.kill()
        for path in (self.home / "jobs").glob("*"):
            end_job(JobFolder(path))
        until(lambda: not any(JobFolder(path).is_locked() for path in (self.home / "jobs").glob("*")))

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def client(self) -> Client:
        return Client.in_folder(self.home / "cluster")

    @property
    def log(self) -> str:
        return (self.home / "cluster" / "manager.log").read_text()

    def coordinators(self) -> list[int]:
        """The coordinators of all jobs here."""
        result = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                mine = f"VF_HOME={self.home}".encode() in (folder / "environ").read_bytes().split(b"\0")
                if mine and b"virtualflow.job.serve" in words and alive(int(folder.name)):
                    result.append(int(folder.name))
        return result

    def submit(self, script: Path = SCRIPT, *arguments: str, slow: bool = False, **options: Any) -> Managed:
        """Hand in a job; the one of these tests if no script is given."""
        self._folders += 1
        folder = self.home / f"gates-{self._folders}"
        folder.mkdir()
        if slow:
            (folder / "slow").touch()
        body = {
            "script": str(script),
            "modules": take(script, waits=True).modules,
            "arguments": [str(folder), *arguments],
            "directory": str(folder),
            "environment": dict(os.environ),
            "interpreter": sys.executable,
        }
        job_id = self.client.post("/api/jobs", **body | options)["id"]
        return Managed(self, job_id, folder)

    def devices(self) -> dict[str, str | None]:
        """Who is on which device."""
        return {device["name"]: device["job"] for device in self.client.get("/api/devices")}


class Managed:
    """A job of a manager's."""

    def __init__(self, service: Service, job_id: str, gates: Path) -> None:
        self.id = job_id
        self.folder = JobFolder(service.home / "jobs" / job_id)
        self.gates = gates
        self._service = service

    def view(self) -> dict[str, Any]:
        view: dict[str, Any] = self._service.client.get(f"/api/jobs/{self.id}")
        return view

    def ask(self, verb: str, **body: Any) -> None:
        self._service.client.post(f"/api/jobs/{self.id}/{verb}", **body)

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first view that fulfils *condition*."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition(view := self.view()):
            assert time.monotonic() < deadline, (view, self._service.log[-2000:])
            assert view["state"] not in ENDED, (view, self._service.log[-2000:])
            time.sleep(0.05)
        return view

    def until_on(self, devices: int) -> dict[str, Any]:
        """Wait until its workers are on so many devices."""
        return self.until(lambda view: view["state"] == "RUNNING" and len(view["devices"]) == devices)

    def until_over(self) -> dict[str, Any]:
        return until(lambda: (view := self.view())["state"] in ENDED and view)  # type: ignore[no-any-return]

    def let_go(self) -> None:
        (self.gates / "slow").unlink(missing_ok=True)

    @property
    def coordinator(self) -> int:
        """The process that runs it."""
        if (pid := self.coordinator_but(0)) is None:
            raise AssertionError(f"nobody runs job {self.id}")
        return pid

    def coordinator_but(self, dead: int) -> int | None:
        """The process that runs it by now, if there is one again after *dead*."""
        for pid in self._service.coordinators():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if self.id.encode() in words and pid != dead:
                    return pid
        return None

    @property
    def steps(self) -> list[int]:
        """Those that it has told of, in order."""
        stream = self.folder.path / STREAM
        events = read_events(stream) if stream.exists() else ()
        return [event.step for event in events if isinstance(event, StepDone)]

    @property
    def output(self) -> str:
        """All that its lead has printed."""
        log = self.folder.path / "logs" / "lead.log"
        return log.read_text() if log.exists() else ""

    def assert_done(self, digest: str) -> dict[str, Any]:
        """It ends well, with the bits of a job that nobody has touched, and no step was lost or done twice."""
        view = self.until_over()
        assert view["state"] == "DONE", view
        assert self.output.splitlines()[-1] == digest
        assert self.steps == list(range(STEPS))
        return view
