"""Real clusters for benchmarks: a manager as a user starts it, and jobs handed in through its HTTP API."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.arena import ROOT
from benchmarks.cluster_job import NODE_SIZE
from virtualflow.cluster.job import Job
from virtualflow.core.emulation import Emulated
from virtualflow.core.job_state import ENDED
from virtualflow.core.profile import Communication, Point, Profile, Workload
from virtualflow.events import STREAM, EpochEnded, Regrouped, StepDone, read_timed_events
from virtualflow.job.folder import JobFolder
from virtualflow.manager.client import Client

SCRIPT = Path(__file__).with_name("cluster_job.py")
WIDTH = 64
DEVICE = "V100"
POLL_SECONDS = 1.0  # each time costs the manager something


@dataclass(frozen=True, slots=True)
class Emulation:
    """A job of a trace as it is really run: fewer and longer steps, which take as long on the whole."""

    job: Job  # with real times, steps and node size
    wave_seconds: float
    communication: tuple[tuple[int, float], ...]

    def workload(self, overhead_seconds: float) -> Workload:
        """For the simulator: what the devices are told to take, and what this machine takes for a step besides."""
        profile = Profile(DEVICE, (Point(NODE_SIZE, self.wave_seconds),), overhead_seconds)
        return Workload(self.job.workload, {DEVICE: profile}, Communication(self.communication))

    def body(self) -> dict[str, Any]:
        emulated = Emulated(points=((NODE_SIZE, self.wave_seconds),), communication=self.communication)
        return body(self.job.id, int(self.job.steps), self.job.virtual_nodes, self.job.demand, self.job.priority) | {
            "emulated": {DEVICE: emulated.to_json()}
        }


def body(name: str, steps: int, virtual_nodes: int, demand: int, priority: float, width: int = WIDTH) -> dict[str, Any]:
    """What a submit sends."""
    return {
        "script": str(SCRIPT),
        "modules": {SCRIPT.name: SCRIPT.read_text()},
        "arguments": [str(steps), str(virtual_nodes), str(width)],
        "name": name,
        "demand": demand,
        "priority": priority,
        "virtual_nodes": virtual_nodes,
    }


@contextmanager
def manager(home: Path, *options: str) -> Iterator[Client]:
    """``vf cluster up`` with a home of its own, and ``down`` at the end."""
    home.mkdir(parents=True, exist_ok=True)
    vf(home, "cluster", "up", *options)
    try:
        yield Client.in_folder(home / "cluster")
    finally:
        vf(home, "cluster", "down")


def manager_seconds(home: Path) -> float:
    """Processor time that the manager with this home has used."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"--foreground" not in (process / "cmdline").read_bytes():
                continue
            if f"VF_HOME={home}\0" in (process / "environ").read_text():
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return float("nan")


def vf(home: Path, *arguments: object) -> None:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "virtualflow.cli.main", *map(str, arguments)]
    environment = {**os.environ, "VF_HOME": str(home), "PYTHONPATH": paths}
    # In a session of its own, as a manager's jobs are: the kernel shares processors out among sessions.
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, start_new_session=True)
    if done.returncode:
        raise RuntimeError(f"vf {' '.join(map(str, arguments))}:\n{done.stdout}{done.stderr}")


def play(client: Client, jobs: Sequence[Emulation]) -> list[str]:
    """Submit each job when it arrives, and wait for all to end. Their ids, in the order of *jobs*."""
    begun, ids = time.monotonic(), []
    for each in sorted(jobs, key=lambda each: each.job.arrival_seconds):
        time.sleep(max(0.0, begun + each.job.arrival_seconds - time.monotonic()))
        ids.append(client.post("/api/jobs", **each.body())["id"])
    wait(client, ids)
    return ids


def wait(client: Client, ids: Sequence[str]) -> None:
    while True:
        states = {job["id"]: job for job in client.get("/api/jobs")}
        for job in states.values():
            if job["state"] in ENDED and job["state"] != "DONE":
                raise RuntimeError(f"job {job['name']} ended as {job['state']}: {job['reason']}")
        if all(states[job_id]["state"] == "DONE" for job_id in ids):
            return
        time.sleep(POLL_SECONDS)


@dataclass(frozen=True, slots=True)
class Trail:
    """What a job has left in its folder."""

    steps: list[tuple[float, StepDone]]
    changes: list[tuple[float, Regrouped]]
    digest: str
    overran: int

    @property
    def gaps(self) -> list[float]:
        """Between committed steps: all that a step takes."""
        times = [at for at, _ in self.steps]
        return [after - before for before, after in pairwise(times)]


def trail(home: Path, job_id: str) -> Trail:
    folder = JobFolder(home / "jobs" / job_id)
    events = list(read_timed_events(folder.path / STREAM))
    return Trail(
        [(at, event) for at, event in events if isinstance(event, StepDone)],
        [(at, event) for at, event in events if isinstance(event, Regrouped)],
        [event.digest for _, event in events if isinstance(event, EpochEnded)][-1],
        folder.read_state().overran_waves,
    )
