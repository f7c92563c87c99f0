"""A stream of submits, resizes, pauses and cancels, while manager, coordinators and workers are killed at random."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests import fakecuda
from tests.chaos.series import assert_no_orphans
from tests.conftest import Launcher
from tests.manager.managed import SCRIPT, STEPS, Managed, Service, until
from virtualflow.backends.local import LocalBackend
from virtualflow.core.job_state import ENDED
from virtualflow.errors import ManagerError
from virtualflow.job import lock_holders

DEVICES = 3
ROUND = [
    *("submit", "submit", "resize", "resize", "priority", "pause", "cancel"),
    *("kill manager", "kill manager", "kill manager", "kill coordinator", "kill coordinator", "kill worker"),
    *("damage checkpoint", "damage state", "no descriptors", "stray folder", "strangers"),
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
        self.done: Counter[str] = Counter()  # strokes that had an effect
        self._strays: list[Path] = []
        self._idle = contextlib.ExitStack()  # connections of strangers
        self._cancelled: set[str] = set()  # may end that way, or had ended before
        self._kinds: dict[str, Callable[[], bool]] = {  # return whether there was something to do
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
            "strangers": self._send_strangers,
        }

    def run(self, calm: str) -> None:
        """Strike, let all jobs end, and hold each one to what it was promised."""
        try:
            self._service.up()
            self._submit()
            for kind in self._strokes:
                with contextlib.suppress(ManagerError):  # it may be about to end, or not be paused: an answer, too
                    self.done[kind] += self._kinds[kind]()
                time.sleep(self._chance.random())
            self._settle()
            for job in self.jobs:
                self._judge(job, calm)
            assert len(self._service.client.get("/api/jobs")) == len(self.jobs)
            assert self._service.coordinators() == []
            assert all(stray.exists() for stray in self._strays)
        finally:
            self._idle.close()
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
            assert job.output.splitlines()[-1] == calm, job.id
            assert job.output.splitlines().count(calm) == 1, f"{job.id} has ended more than once"
            assert sorted(set(job.steps)) == list(range(STEPS))

    def _submit(self) -> bool:
        if has_room := len(self.jobs) < self._most_jobs:
            nodes = self._chance.choice([None, 4])
            demand = self._chance.randint(1, DEVICES)
            options: dict[str, Any] = {"demand": demand, "virtual_nodes": nodes, "checkpoint_every": 25}
            self.jobs.append(self._service.submit(slow=self._chance.random() < 0.8, **options))
        return has_room

    def _tell(self, verb: str, **body: Any) -> bool:
        self._chance.choice(self.jobs).ask(verb, **body)
        return True

    def _pause(self) -> bool:
        job = self._chance.choice(self.jobs)
        job.ask("pause")
        time.sleep(self._chance.random())
        job.ask("resume")
        return True

    def _cancel(self) -> bool:
        job = self._chance.choice(self.jobs)
        self._cancelled.add(job.id)
        job.ask("cancel")
        return True

    def _kill_manager(self) -> bool:
        """Often right after a submit, with a launch under way."""
        if self._chance.random() < 0.5:
            self._submit()
            time.sleep(0.3 * self._chance.random())
        self._service.kill()
        time.sleep(self._chance.random())
        self._service.up()
        return True

    def _kill_coordinator(self) -> bool:
        if pids := self._service.coordinators():
            _kill(self._chance.choice(sorted(pids)))
        return bool(pids)

    def _kill_worker(self) -> bool:
        workers = {worker.pid: job for job in self.jobs for worker in job.folder.read_state().workers}
        if alive := sorted(pid for pid, job in workers.items() if lock_holders.is_held_by(pid, job.folder.lock)):
            _kill(self._chance.choice(alive))
        return bool(alive)

    def _damage_checkpoint(self) -> bool:
        """A bit of a job's newest checkpoint turns; then its coordinator dies, so that it goes on from there."""
        checkpoints = [path for job in self.jobs for path in job.folder.automatic_checkpoints()[-1:]]
        if checkpoints:
            with self._chance.choice(checkpoints).open("r+b") as file:
                file.seek(self._chance.randrange(100, 1000))
                byte = file.read(1)[0]
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte ^ 4]))
        self._kill_coordinator()
        return bool(checkpoints)

    def _damage_state(self) -> bool:
        state = self._chance.choice(self.jobs).folder.path / "state.json"
        if is_there := state.exists():
            state.write_bytes(self._chance.choice([b"", b"{", self._chance.randbytes(100)]))
        return is_there

    def _take_descriptors(self) -> bool:
        """For a second, the manager can open, accept and start nothing."""
        limits = resource.prlimit(self._service.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(self._service.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        time.sleep(1.0)
        resource.prlimit(self._service.pid, resource.RLIMIT_NOFILE, limits)
        return True

    def _send_strangers(self) -> bool:
        """Resets, requests that are none, without a token or with a wrong one, and some who say nothing."""
        address = urlsplit((self._service.home / "cluster" / "address").read_text().strip())
        requests = [
            *(
                self._chance.randbytes(200),
                b"GET / HTTP/1.1\r\n",
                b"POST /api/jobs HTTP/1.1\r\nContent-Length: 9\r\n\r\n{",
            ),
            b"POST /api/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer none\r\nContent-Length: 2\r\n\r\n{}",
            *(b"DELETE /api/devices HTTP/1.1\r\n\r\n", b"x" * 100_000),
        ]
        for number in range(40):
            with contextlib.suppress(OSError):
                connection = socket.create_connection((address.hostname or "127.0.0.1", address.port or 0), timeout=5)
                self._idle.callback(connection.close)
                connection.setblocking(False)
                if number % 4 == 0:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    connection.close()
                elif number % 4 != 1:
                    connection.send(self._chance.choice(requests))
        return True

    def _leave_stray_folder(self) -> bool:
        """A folder that no record names: nobody may remove it, and nobody may stumble over it."""
        stray = self._service.home / "jobs" / f"stray-{len(self._strays)}"
        stray.mkdir(parents=True, exist_ok=True)
        (stray / "job.json").write_bytes(self._chance.choice([b"", b"{}", b"\xff"]))
        self._strays.append(stray)
        return True


class ManagerAttack:
    """Schedules of strokes, each at a manager of its own."""

    def __init__(self, home: Path, accelerator: bool) -> None:
        (home / "calm").mkdir()
        with LocalBackend() as backend:
            self._calm = Launcher(backend, home)(SCRIPT, 1, [str(home / "calm")]).digest
        if accelerator:
            os.environ.update(fakecuda.environment(fakecuda.DEVICES))

    def __call__(self, seed: int, folder: Path) -> Counter[str]:
        """One schedule; returns how often each kind has had an effect."""
        chaos = ManagerChaos(folder / "home", seed, rounds=1)
        chaos.run(self._calm)
        assert_no_orphans(f"VF_HOME={folder / 'home'}")
        return chaos.done + Counter({"jobs that ended once": len(chaos.jobs)})

    def close(self) -> None:
        """Nothing is kept from one schedule to the next."""


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
