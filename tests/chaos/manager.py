"""A stream of submits, resizes, pauses and cancels, while manager, coordinators and workers are killed at random."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cli.test_run import descendants
from tests.manager.managed import STEPS, Managed, Service, until
from virtualflow.core.job_state import ENDED
from virtualflow.errors import ManagerError

DEVICES = 3
ROUND = [
    *("submit", "submit", "resize", "resize", "priority", "pause", "cancel"),
    *("kill manager", "kill manager", "kill manager", "kill coordinator", "kill coordinator", "kill worker"),
    *("damage checkpoint", "damage state", "no descriptors", "stray folder"),
]
SETTLE_SECONDS = 400.0  # for all jobs to end, on a busy machine


class ManagerChaos:
    """One schedule: the same strokes for the same *seed*, though not at the same moments of the jobs."""

    def __init__(self, home: Path, seed: int, rounds: int) -> None:
        self._chance = random.Random(seed)
        self._strokes = [kind for _ in range(rounds) for kind in self._chance.sample(ROUND, len(ROUND))]
        self._most_jobs = 1 + 3 * rounds
        self._service = Service(home, "--devices", str(DEVICES), "--patience", "5")
        self.jobs: list[Managed] = []
        self.done: Counter[str] = Counter()
        self._strays: list[Path] = []
        self._cancelled: set[str] = set()  # may end that way, or had ended before
        self._kinds: dict[str, Callable[[], None]] = {
            "submit": self._submit,
            "resize": lambda: self._tell("resize", devices=self._chance.choice([1, 2, 3, "auto"])),
            "priority": lambda: self._tell("priority", priority=self._chance.choice([1.0, 2.0, 5.0])),
            "pause": self._pause,
            "cancel": self._cancel,
            "kill manager": self._kill_manager,
            "kill coordinator": self._kill_coordinator,
            "kill worker": self._kill_worker,
            "damage checkpoint": self._damage_checkpoint,
            "damage state": self._damage_state,
            "no descriptors": self._take_descriptors,
            "stray folder": self._leave_stray_folder,
        }

    def run(self, calm: str) -> None:
        """Strike, let all jobs end, and hold each one to what it was promised."""
        try:
            self._service.up()
            self._submit()
            for kind in self._strokes:
                with contextlib.suppress(ManagerError):  # it may be about to end, or not be paused: an answer, too
                    self._kinds[kind]()
                self.done[kind] += 1
                time.sleep(self._chance.random())
            self._settle()
            for job in self.jobs:
                self._judge(job, calm)
            assert len(self._service.client.get("/api/jobs")) == len(self.jobs)
            assert self._service.coordinators() == []
            assert all(stray.exists() for stray in self._strays)
        finally:
            self._service.close()

    def _settle(self) -> None:
        for job in self.jobs:
            job.let_go()

        def all_ended() -> bool:
            states = {each["id"]: each["state"] for each in self._service.client.get("/api/jobs")}
            for job_id in (each for each, state in states.items() if state == "PAUSED"):
                self._service.client.post(f"/api/jobs/{job_id}/resume")
            return all(state in ENDED for state in states.values())

        until(all_ended, SETTLE_SECONDS)

    def _judge(self, job: Managed, calm: str) -> None:
        view = job.view()
        assert view["state"] == "DONE" or (view["state"] == "CANCELLED" and job.id in self._cancelled), view
        if view["state"] == "DONE":
            assert job.said.splitlines()[-1] == calm, job.id
            assert job.said.splitlines().count(calm) == 1, f"{job.id} has ended more than once"
            assert sorted(set(job.steps)) == list(range(STEPS))

    def _submit(self) -> None:
        if len(self.jobs) < self._most_jobs:
            nodes = self._chance.choice([None, 4])
            demand = self._chance.randint(1, DEVICES)
            options: dict[str, Any] = {"demand": demand, "virtual_nodes": nodes, "checkpoint_every": 25}
            self.jobs.append(self._service.submit(slow=self._chance.random() < 0.8, **options))

    def _tell(self, verb: str, **body: Any) -> None:
        self._chance.choice(self.jobs).ask(verb, **body)

    def _pause(self) -> None:
        job = self._chance.choice(self.jobs)
        job.ask("pause")
        time.sleep(self._chance.random())
        job.ask("resume")

    def _cancel(self) -> None:
        job = self._chance.choice(self.jobs)
        self._cancelled.add(job.id)
        job.ask("cancel")

    def _kill_manager(self) -> None:
        """Often right after a submit, with a launch under way."""
        if self._chance.random() < 0.5:
            self._submit()
            time.sleep(0.3 * self._chance.random())
        self._service.kill()
        time.sleep(self._chance.random())
        self._service.up()

    def _kill_coordinator(self) -> None:
        if pids := self._service.coordinators():
            _kill(self._chance.choice(sorted(pids)))

    def _kill_worker(self) -> None:
        workers = [worker["pid"] for job in self.jobs for worker in job.folder.read_state()["workers"]]
        family = [pid for coordinator in self._service.coordinators() for pid in _family(coordinator)]
        if alive := sorted(set(workers) & set(family)):
            _kill(self._chance.choice(alive))

    def _damage_checkpoint(self) -> None:
        """A bit of a job's newest checkpoint turns; then its coordinator dies, so that it goes on from there."""
        checkpoints = [path for job in self.jobs for path in job.folder.automatic_checkpoints()[-1:]]
        if checkpoints:
            with self._chance.choice(checkpoints).open("r+b") as file:
                file.seek(self._chance.randrange(100, 1000))
                byte = file.read(1)[0]
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte ^ 4]))
        self._kill_coordinator()

    def _damage_state(self) -> None:
        state = self._chance.choice(self.jobs).folder.path / "state.json"
        if state.exists():
            state.write_bytes(self._chance.choice([b"", b"{", self._chance.randbytes(100)]))

    def _take_descriptors(self) -> None:
        """For a second, the manager can open, accept and start nothing."""
        limits = resource.prlimit(self._service.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(self._service.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        time.sleep(1.0)
        resource.prlimit(self._service.pid, resource.RLIMIT_NOFILE, limits)

    def _leave_stray_folder(self) -> None:
        """A folder that no record names: nobody may remove it, and nobody may stumble over it."""
        stray = self._service.home / "jobs" / f"stray-{self.done['stray folder']}"
        stray.mkdir(parents=True, exist_ok=True)
        (stray / "job.json").write_bytes(self._chance.choice([b"", b"{}", b"\xff"]))
        self._strays.append(stray)


def _family(pid: int) -> list[int]:
    try:
        return descendants(pid)
    except OSError:
        return []


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
