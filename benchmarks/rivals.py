"""Other systems through the same events: how much time they lose when a worker dies, or when one is added."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

WARM_UP, AFTER = 12, 12  # steps before something happens, and after
GIVE_UP_SECONDS = 60.0
LIGHTHOUSE = """
import sys, time
from torchft.coordination import LighthouseServer
server = LighthouseServer("127.0.0.1:0", 1, join_timeout_ms=100, quorum_tick_ms=10, heartbeat_timeout_ms=500)
print(server.address(), flush=True)
sys.stdin.read()
"""


class Agents:
    """Processes that train together, with the steps that they report in *folder*."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, command: Sequence[str], **environment: str) -> subprocess.Popen[str]:
        with (self.folder / "log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if command[0] == "-c" else log,
                stderr=log,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
            )
        self._processes.append(process)
        return process

    def kill(self, name: str) -> None:
        os.kill(int((self.folder / f"pid-{name}").read_text()), signal.SIGKILL)

    @property
    def steps(self) -> list[tuple[float, int, int]]:
        """When each step was made, which, and a mark: of the process, or how many took part."""
        if not (self.folder / "steps").exists():
            return []
        rows = [line.split() for line in (self.folder / "steps").read_text().splitlines()]
        return [(float(row[0]), int(row[1]), int(row[2])) for row in rows if len(row) == 3]

    @property
    def progress(self) -> list[tuple[float, int]]:
        """When a step was made for the first time, with its mark. What is made a second time is lost too."""
        highest, news = 0, []
        for at, step, mark in self.steps:
            if step > highest:
                highest = step
                news.append((at, mark))
        return news

    def lost_seconds(self) -> float:
        """The longest time without progress, less an ordinary step's."""
        gaps = [later - sooner for (sooner, _), (later, _) in pairwise(self.progress)]
        return max(gaps) - statistics.median(gaps)

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError((self.folder / "log").read_text()[-2000:])
            time.sleep(0.05)

    def end(self) -> None:
        (self.folder / "enough").touch()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(timeout=40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def agents() -> Iterator[Agents]:
    with tempfile.TemporaryDirectory() as name:
        started = Agents(Path(name))
        try:
            yield started
        finally:
            started.end()


def torchrun(width: int, act: str) -> float:
    """Seconds lost under torchrun when a worker is killed, or when a second agent brings a third worker.

    It gets the shortest waiting time for more agents, so that it does not lose by a default, and a new store for each
    restart: with the old one gloo finds the addresses of the dead and may take three restarts.
    """
    with agents() as started:
        command = [
            *("-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-id=bench", "--max-restarts=3"),
            *(f"--rdzv-endpoint=127.0.0.1:{_free_port()}", "--rdzv-conf=last_call_timeout=1"),
            "--nnodes=1" if act == "kill" else "--nnodes=1:2",
        ]

        def add(workers: int) -> None:
            script = [f"--nproc-per-node={workers}", "-m", "benchmarks.elastic_torchrun", str(width)]
            started.start([*command, *script, str(started.folder)], TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")

        add(3 if act == "kill" else 2)
        started.wait(lambda: len(started.steps) > WARM_UP)
        before = {process for _, process in started.progress}
        if act == "kill":
            started.kill("1")
        else:
            add(1)
        started.wait(lambda: sum(process not in before for _, process in started.progress) > AFTER)
        return started.lost_seconds()


def torchft(width: int, act: str) -> float:
    """The same under torchft, whose lighthouse takes a replica for dead after half a second of silence."""
    with agents() as started:
        lighthouse = started.start(["-c", LIGHTHOUSE])
        assert lighthouse.stdout is not None
        address = lighthouse.stdout.readline().strip()

        def add(replica: int) -> None:
            command = ["-m", "benchmarks.elastic_torchft", str(width), str(started.folder), address, str(replica)]
            started.start(command)

        first, then = (3, 2) if act == "kill" else (2, 3)
        for replica in range(first):
            add(replica)
        started.wait(lambda: sum(replicas == first for _, _, replicas in started.steps) > WARM_UP)
        if act == "kill":
            started.kill("1")
        else:
            add(2)
        started.wait(lambda: sum(replicas == then for _, _, replicas in started.steps[-2 * AFTER :]) > AFTER)
        return started.lost_seconds()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
