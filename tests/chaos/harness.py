"""Runs a job through a schedule of joins, leaves, kills and stops, tied to the job's steps and so repeatable."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cli.test_run import descendants
from tests.conftest import Finished, Printed
from tests.job.test_strangers import LINES
from tests.ports import free_port
from virtualflow.backends.local import LocalBackend
from virtualflow.events import STREAM, EventReader, StepDone
from virtualflow.events.certificate import compare
from virtualflow.job.coordinator import Coordinator
from virtualflow.job.folder import JobFolder, JobSpec
from virtualflow.system import tls

JOB = Path(__file__).with_name("job.py")
SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP}
AROUND = ("server", "loader", "stranger", "port", "damage", "descriptors")
WITHOUT_DESCRIPTORS_TICKS = 50
IDLE_STRANGERS = 100


@dataclass(frozen=True)
class Strike:
    """What happens once the job has made *step* steps: to the *victim*-th worker, or to the number of devices."""

    step: int
    kind: str  # one of SIGNALS to a worker, "resize", "move", "end" with a checkpoint, or one of AROUND: see `Chaos`
    victim: int = 0
    devices: int = 0
    waits: bool = False  # for all changes that were asked for before


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
        spared: int = 1,
        listen: bool = False,
        script: Path = JOB,
        cells: list[list[int]] | None = None,
    ) -> None:
        """The last *spared* workers are not killed: somebody must hold the state. With *listen* it has a port.

        *cells* is the grid of a model in stages, on as many devices as it names.
        """
        self._cells = tuple(map(tuple, cells)) if cells is not None else None
        self._spared = spared
        self._script = script
        self._port = free_port() if listen else None
        self._strangers: list[threading.Thread] = []
        self._over = threading.Event()
        self._backend = backend
        self.folder = JobFolder(folder)
        self._devices = devices
        self._patience = patience_seconds
        self._rebalance = rebalance
        self._hold = folder / "hold"  # while it is there, a job that was told of it is slow
        self.done: Counter[str] = Counter()  # strikes that had an effect
        self._reader = EventReader(self.folder.path / STREAM)
        self._step = 0
        self._descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._ticks_without = 0
        self._struck: set[int] = set()
        self._around: dict[str, Callable[[random.Random], bool]] = {  # return whether there was something to strike
            "server": self._kill_server,
            "loader": self._kill_helper,
            "stranger": self._send_garbage,
            "port": self._attack_port,
            "damage": self._damage_file,
            "descriptors": self._take_descriptors,
        }

    def run_held(self, strikes: list[Strike], **options: Any) -> Finished:
        """Run so that all *strikes* have had their effect before the job ends."""
        self._hold.parent.mkdir(parents=True, exist_ok=True)
        self._hold.touch()
        return self.run(strikes, hold=str(self._hold), **options)

    def run(
        self,
        strikes: list[Strike] = (),  # type: ignore[assignment]
        resume_from: Path | None = None,
        checkpoint_every: int = 0,
        **options: Any,
    ) -> Finished:
        """Run the job, or go on with it from a checkpoint."""
        ids = self.folder.path / "ids"
        ids.mkdir(parents=True, exist_ok=True)
        spec = JobSpec.of(
            job_id=self.folder.path.name,
            script=str(self._script),
            arguments=(json.dumps({"folder": str(ids), "spared": self._spared, **options}),),
            devices=tuple(str(device) for device in range(self._devices)),
            patience_seconds=self._patience,
            rebalance=self._rebalance,
            listen=None if self._port is None else f"127.0.0.1:{self._port}",
            token_file=str(self.folder.path / "token"),
            checkpoint_every=checkpoint_every,
            cells=self._cells,
        )
        if resume_from is None:
            self.folder.create(spec)
        else:
            self.folder.change(spec)
        printed = Printed()
        self._left = list(strikes)
        self._coordinator = Coordinator(spec, self.folder, self._backend, printed, self._tick, resume_from)
        try:
            outcome = self._coordinator.run()
        finally:
            self._give_descriptors_back()
            self._over.set()
            for stranger in self._strangers:
                stranger.join()
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
        while self._left and self._is_due(self._left[0]):
            self._strike(self._left.pop(0))
        if not self._left and self._coordinator.roster.is_settled:
            self._hold.unlink(missing_ok=True)

    def _is_due(self, strike: Strike) -> bool:
        return self._step >= strike.step and (not strike.waits or self._coordinator.roster.is_settled)

    def _strike(self, strike: Strike) -> None:
        workers = [worker for worker in self._coordinator.status().workers if worker.pid not in self._struck]
        had_effect = True
        if strike.kind == "resize":
            had_effect = strike.devices != len(self._coordinator.roster.generation.devices)
            self._coordinator.resize(strike.devices)
        elif strike.kind == "move":  # to devices that the job has never had
            self._coordinator.move([f"new-{number}" for number in range(strike.devices)])
        elif strike.kind == "end":
            self._coordinator.stop(checkpoint=True)
        elif strike.kind in self._around:
            had_effect = False
            with contextlib.suppress(OSError):  # this process is the coordinator, which may have no descriptor left
                had_effect = self._around[strike.kind](random.Random(strike.victim))
        elif len(workers) <= self._spared:
            had_effect = False
        else:
            victim = workers[strike.victim % len(workers)].pid
            self._struck.add(victim)  # before the coordinator knows
            had_effect = _kill(victim, SIGNALS[strike.kind])
        self.done[strike.kind] += had_effect

    def _kill_server(self, _: random.Random) -> bool:
        return _kill(self._backend.server_pid, signal.SIGKILL)

    def _kill_helper(self, chance: random.Random) -> bool:
        """A loader, or what the script itself has left behind."""
        workers = [worker.pid for worker in self._coordinator.status().workers]
        if helpers := [pid for worker in workers for pid in descendants(worker)]:
            return _kill(chance.choice(helpers), signal.SIGKILL)
        return False

    def _send_garbage(self, chance: random.Random) -> bool:
        for line in (chance.randbytes(200), b'{"type": "ResizeJob"}\n', b"[" * 5000 + b"\n", b""):
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(str(self.folder.control))
                stranger.sendall(line)
        return True

    def _attack_port(self, chance: random.Random) -> bool:
        """Resets as of a port scan, lines without a token, plain and encrypted, and many who say nothing."""
        if self._port is None:
            return False
        self._strangers.append(threading.Thread(target=self._be_strange, args=(self._port, chance)))
        self._strangers[-1].start()
        return True

    def _be_strange(self, port: int, chance: random.Random) -> None:
        with ExitStack() as open_:
            for number in range(IDLE_STRANGERS):
                with suppress(OSError):
                    stranger = socket.create_connection(("127.0.0.1", port), timeout=5)
                    if number % 2:
                        open_.callback(stranger.close)
                    else:
                        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        stranger.close()
            for line in chance.sample(LINES, 6):
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as plain:
                    if chance.random() < 0.5:
                        plain.sendall(line)
                        continue
                    with tls.client_context().wrap_socket(plain) as encrypted:
                        encrypted.sendall(line)
            self._over.wait(30)

    def _damage_file(self, chance: random.Random) -> bool:
        """As a failing disk does to what the job's folder says of it."""
        damaged = self.folder.path / chance.choice(["state.json", "job.json"])
        damaged.write_bytes(chance.choice([b"", b"{", chance.randbytes(100)]))
        return True

    def _take_descriptors(self, _: random.Random) -> bool:
        """For a while, nothing can be opened, accepted or started."""
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, self._descriptors[1]))
        self._ticks_without = WITHOUT_DESCRIPTORS_TICKS
        return True

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


def _kill(pid: int, signal_number: int) -> bool:
    """Return whether it was still there: a fault may have come first."""
    try:
        os.kill(pid, signal_number)
    except ProcessLookupError:
        return False
    return True
