"""Runs a job through a schedule of joins, leaves, kills and stops, tied to the job's steps and so repeatable."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cli.test_run import descendants
from tests.conftest import Finished, Printed
from virtualflow.backends.local import LocalBackend
from virtualflow.core.certificate import compare
from virtualflow.events import STREAM, EventReader, StepDone
from virtualflow.job.coordinator import Coordinator
from virtualflow.job.folder import JobFolder, JobSpec

JOB = Path(__file__).with_name("job.py")
SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP}
AROUND = ("server", "loader", "stranger", "damage", "descriptors")
WITHOUT_DESCRIPTORS_TICKS = 50


@dataclass(frozen=True)
class Strike:
    """What happens once the job has made *step* steps: to the *victim*-th worker, or to the number of devices."""

    step: int
    kind: str  # one of SIGNALS to a worker, "resize", or one of AROUND: see `Chaos`
    victim: int = 0
    devices: int = 0


def schedule(seed: int, strikes: int, steps: int, *, around: bool = False) -> list[Strike]:
    """A random schedule, the same for the same *seed*; with strikes at what is *around* the workers, too."""
    chance = random.Random(seed)
    kinds = ["kill"] * 4 + ["resize"] * 4 + ["term", "stop"] + [*AROUND] * around
    made = []
    for _ in range(strikes):
        kind = chance.choice(kinds)
        made.append(Strike(chance.randrange(2, steps - 2), kind, chance.randrange(8), chance.randint(2, 8)))
    return sorted(made, key=lambda strike: strike.step)


class Chaos:
    """One job under fire."""

    def __init__(
        self,
        backend: LocalBackend,
        folder: Path,
        devices: int = 5,
        patience_seconds: float = 10.0,
        rebalance: bool = False,
    ) -> None:
        self._backend = backend
        self.folder = JobFolder(folder)
        self._devices = devices
        self._patience = patience_seconds
        self._rebalance = rebalance
        self._hold = folder / "hold"  # while it is there, a job that was told of it is slow
        self.done: Counter[str] = Counter()
        self._reader = EventReader(self.folder.path / STREAM)
        self._step = 0
        self._descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._ticks_without = 0
        self._around: dict[str, Callable[[random.Random], None]] = {
            "server": lambda _: os.kill(backend._server.pid, signal.SIGKILL),
            "loader": self._kill_helper,
            "stranger": self._send_garbage,
            "damage": self._damage_file,
            "descriptors": self._take_descriptors,
        }

    def run_held(self, strikes: list[Strike]) -> Finished:
        """Run so that all *strikes* have had their effect before the job ends."""
        self._hold.parent.mkdir(parents=True, exist_ok=True)
        self._hold.touch()
        return self.run(strikes, hold=str(self._hold))

    def run(self, strikes: list[Strike] = (), **options: Any) -> Finished:  # type: ignore[assignment]
        ids = self.folder.path / "ids"
        ids.mkdir(parents=True, exist_ok=True)
        spec = JobSpec.of(
            job_id=self.folder.path.name,
            script=str(JOB),
            arguments=(json.dumps({"folder": str(ids), **options}),),
            devices=tuple(str(device) for device in range(self._devices)),
            patience_seconds=self._patience,
            rebalance=self._rebalance,
        )
        self.folder.create(spec)
        printed = Printed()
        self._left = list(strikes)
        self._coordinator = Coordinator(spec, self.folder, self._backend, printed, self._tick)
        try:
            outcome = self._coordinator.run()
        finally:
            self._give_descriptors_back()
        return Finished(outcome, self.folder.path, printed)

    def _tick(self) -> None:
        if self._ticks_without:
            self._ticks_without -= 1
            if self._ticks_without:
                return
            self._give_descriptors_back()
        if self._left:
            for _, event in self._reader.read():
                if isinstance(event, StepDone):
                    self._step = event.step
        while self._left and self._step >= self._left[0].step:
            self._strike(self._left.pop(0))
        if not self._left and self._coordinator.roster.is_settled:
            self._hold.unlink(missing_ok=True)

    def _strike(self, strike: Strike) -> None:
        workers = self._coordinator.status().workers
        if strike.kind == "resize":
            self._coordinator.resize(strike.devices)
        elif strike.kind in self._around:
            self._around[strike.kind](random.Random(strike.victim))
        elif len(workers) < 2:
            return  # somebody must hold the state
        else:
            os.kill(workers[strike.victim % len(workers)].pid, SIGNALS[strike.kind])
        self.done[strike.kind] += 1

    def _kill_helper(self, chance: random.Random) -> None:
        """A loader, or what the script itself has left behind."""
        workers = [worker.pid for worker in self._coordinator.status().workers]
        if helpers := [pid for worker in workers for pid in descendants(worker)]:
            os.kill(chance.choice(helpers), signal.SIGKILL)

    def _send_garbage(self, chance: random.Random) -> None:
        for line in (chance.randbytes(200), b'{"type": "ResizeJob"}\n', b"[" * 5000 + b"\n", b""):
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(str(self.folder.control))
                stranger.sendall(line)

    def _damage_file(self, chance: random.Random) -> None:
        """As a failing disk does to what the job's folder says of it."""
        damaged = self.folder.path / chance.choice(["state.json", "job.json"])
        damaged.write_bytes(chance.choice([b"", b"{", chance.randbytes(100)]))

    def _take_descriptors(self, _: random.Random) -> None:
        """For a while, nothing can be opened, accepted or started."""
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, self._descriptors[1]))
        self._ticks_without = WITHOUT_DESCRIPTORS_TICKS

    def _give_descriptors_back(self) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, self._descriptors)


def assert_undisturbed(finished: Finished, calm: Finished) -> None:
    """The disturbed run has the bits of the calm one, step by step, and used every example once per epoch."""
    assert finished.outcome.code == 0, finished.failure
    assert [step.step for step in finished.steps] == [step.step for step in calm.steps]
    verdict = compare(calm.certificate, finished.certificate)
    assert verdict.equal, verdict
    said = [line for device in "0123456789" for line in finished.out(device).splitlines()]
    assert said == calm.out().splitlines()
