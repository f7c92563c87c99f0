"""Runs contenders in turn, a short segment each, round after round: what disturbs one disturbs the others too."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = Path(__file__).with_name("contender.py")
START_SECONDS = 180.0
SEGMENT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Contender:
    """A training loop in processes of its own, one for each device."""

    name: str
    kind: str  # plain, fast, exact, sentinel (exact with one), accelerate, fabric
    setting: str
    virtual_nodes: int
    devices: int = 1
    steps: int = 1  # of one segment
    keeps_memory: bool = False  # with the allocator settings that VirtualFlow makes for itself
    node_size: int = 0  # 0: the setting's

    def command(self) -> list[str]:
        numbers = (self.virtual_nodes, self.devices, self.node_size)
        arguments = [self.name, self.kind, self.setting, *map(str, numbers)]
        if self.devices == 1:
            return [sys.executable, str(SCRIPT), *arguments]
        if self.kind in ("exact", "fast", "sentinel"):
            launcher = ["-m", "virtualflow.cli.main", "run", "--devices", str(self.devices), "--patience", "600"]
            return [sys.executable, *launcher, str(SCRIPT), *arguments]
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.devices)]
        return [sys.executable, *launcher, str(SCRIPT), *arguments]


@dataclass(slots=True)
class Runs:
    """The time of every segment of every contender, round by round."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    cpu_seconds: dict[str, list[float]] = field(default_factory=dict)
    others: list[float] = field(default_factory=list)  # cores that other processes kept busy meanwhile

    def note(self, name: str, seconds: float, cpu_seconds: float, busy_seconds: float) -> None:
        self.seconds.setdefault(name, []).append(seconds)
        self.cpu_seconds.setdefault(name, []).append(cpu_seconds)
        self.others.append(max(0.0, busy_seconds - cpu_seconds) / seconds)

    @property
    def disturbance(self) -> str:
        """How far the machine was not ours: what to think of these times."""
        return f"other processes kept {statistics.mean(self.others):.2f} of {os.cpu_count()} cores busy"


def race(contenders: Sequence[Contender], rounds: int, *, launches: int = 1, warmup: int = 1) -> Runs:
    """*rounds* rounds in which each contender runs one segment, in an order drawn anew each time.

    Over several *launches*, because how a process's memory happens to be laid out lasts as long as the process.
    """
    runs = Runs()
    shuffle = random.Random(0).shuffle
    for launch in range(launches):
        with started(contenders) as connections:
            for number in range(warmup + (rounds * (launch + 1)) // launches - (rounds * launch) // launches):
                order = list(contenders)
                shuffle(order)
                for contender in order:
                    before = busy_seconds()
                    segment = _segment(contender, connections[contender.name])
                    if number >= warmup:
                        runs.note(contender.name, *segment, busy_seconds() - before)
    return runs


def busy_seconds() -> float:
    """CPU time that this machine's processes have used so far."""
    user, nice, system, *_ = (int(text) for text in Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def _segment(contender: Contender, lines: list[TextIO]) -> tuple[float, float]:
    """One segment: as long as its slowest device took; the CPU time of all."""
    for line in lines:
        print(contender.steps, file=line, flush=True)
    texts = [line.readline() for line in lines]
    if not all(texts):
        raise RuntimeError(f"contender {contender.name!r} of {contender.setting} ended in the middle of a race")
    answers = [json.loads(text) for text in texts]
    return max(a["seconds"] for a in answers), sum(a["cpu_seconds"] for a in answers)


@contextlib.contextmanager
def started(contenders: Sequence[Contender]) -> Iterator[dict[str, list[TextIO]]]:
    """All contenders, set up and waiting; each is idle unless a segment of it runs."""
    with contextlib.ExitStack() as owned:
        folder = owned.enter_context(tempfile.TemporaryDirectory(prefix="vf-bench-"))
        listening = owned.enter_context(socket.socket(socket.AF_UNIX))
        listening.bind(f"{folder}/arena")
        listening.listen()
        listening.settimeout(1.0)
        connections: dict[str, list[TextIO]] = {contender.name: [] for contender in contenders}
        processes = {}
        for contender in contenders:
            processes[contender.name] = _start(contender, folder)
            owned.callback(_end, processes[contender.name])
        for _ in range(sum(contender.devices for contender in contenders)):
            connection = _accepted(listening, processes, folder)
            connection.settimeout(SEGMENT_SECONDS)
            owned.callback(connection.close)
            lines = connection.makefile("rw", buffering=1)
            connections[json.loads(lines.readline())["name"]].append(lines)
        yield connections


def _accepted(listening: socket.socket, processes: dict[str, subprocess.Popen[bytes]], folder: str) -> socket.socket:
    """The next connection, unless a contender ends before it makes one."""
    for _ in range(int(START_SECONDS)):
        with contextlib.suppress(TimeoutError):
            return listening.accept()[0]
        for name, process in processes.items():
            if process.poll() is not None:
                raise RuntimeError(f"contender {name!r} ended:\n{Path(folder, f'{name}.log').read_text()[-2000:]}")
    raise RuntimeError(f"a contender did not start within {START_SECONDS:.0f} s")


def _start(contender: Contender, folder: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "VF_BENCH_SOCKET": f"{folder}/arena",
        "VF_HOME": f"{folder}/vf",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }
    if contender.keeps_memory:
        environment |= {"MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_MMAP_THRESHOLD_": str(2**30)}
    log = open(f"{folder}/{contender.name}.log", "wb")  # noqa: SIM115  (the process writes to it)
    with log:
        return subprocess.Popen(
            contender.command(), env=environment, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    # The launchers hand a SIGTERM on to what they started.
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
