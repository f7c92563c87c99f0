"""Resizes and deaths: how long training stands still, here and elsewhere."""

from __future__ import annotations

import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import report, rivals
from virtualflow.backends.local import LocalBackend
from virtualflow.events import STREAM, Regrouped, StepDone, read_events, read_timed_events
from virtualflow.job.coordinator import Coordinator
from virtualflow.job.folder import JobFolder, JobSpec

SCRIPT = Path(__file__).with_name("elastic_job.py")
LARGE, SMALL = 5000, 256  # 25 million parameters, and few
WARM_UP = 12  # steps before something happens, and after


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a job, in seconds."""

    pause: float  # in which no step was made, beyond an ordinary one
    background: float  # from the request until the new group has formed, in which training goes on


class Quiet:
    """Takes what workers print, and shows nothing."""

    def write(self, device: str, stream: str, data: bytes, *, lead: bool) -> None: ...
    def close(self) -> None: ...


def run_through(
    backend: LocalBackend, devices: int, width: int, acts: list[Callable[[Coordinator], None]]
) -> list[Change]:
    """Train, do each of *acts* in turn, and return how long each took."""
    with tempfile.TemporaryDirectory() as name:
        folder = JobFolder(Path(name) / "job")
        names = tuple(str(device) for device in range(devices))
        job = JobSpec.of("bench", str(SCRIPT), (str(width), "1000"), names, checkpoint_every=0)
        folder.create(job)
        struck: list[float] = []
        left = list(acts)

        def tick() -> None:
            if not (folder.path / STREAM).exists():
                return
            settled = coordinator.roster.is_settled
            times = [t for t, e in read_timed_events(folder.path / STREAM) if isinstance(e, StepDone)]
            quiet_since = struck[-1] if struck else 0.0
            if settled and sum(t > quiet_since + 1.0 for t in times) >= WARM_UP:
                if not left:
                    coordinator.stop(checkpoint=False)
                    return
                struck.append(time.time())
                left.pop(0)(coordinator)

        coordinator = Coordinator(job, folder, backend, Quiet(), tick)
        coordinator.run()
        return _changes(list(read_timed_events(folder.path / STREAM)), struck)


def _changes(events: list[tuple[float, Any]], struck: list[float]) -> list[Change]:
    """For each strike: how long after it, or after the last step, the next one was committed, less one step."""
    steps = [(at, event.seconds) for at, event in events if isinstance(event, StepDone)]
    ordinary = statistics.median(seconds for _, seconds in steps)
    changes = []
    for begun in struck:
        told, change = next((at, e) for at, e in events if isinstance(e, Regrouped) and at > begun)
        if change.cause == "loss":  # told at the boundary after the step that it interrupted
            pause = max(at for at, _ in steps if at <= told) - begun - ordinary
        else:
            after = [(at, seconds) for at, seconds in steps if at > told][:WARM_UP]
            ordinary_after = statistics.median(seconds for _, seconds in after[1:])
            pause = after[0][0] - max(at for at, _ in steps if at <= told) - ordinary_after
        changes.append(Change(pause, told - begun))
    return changes


def pauses_of(changes: Sequence[Change]) -> list[float]:
    return [change.pause for change in changes]


def kill(device: str) -> Callable[[Coordinator], None]:
    def act(coordinator: Coordinator) -> None:
        pids = {worker.device: worker.pid for worker in coordinator.status().workers}
        os.kill(pids[device], signal.SIGKILL)

    return act


def resize(devices: int) -> Callable[[Coordinator], None]:
    return lambda coordinator: coordinator.resize(devices)


BROADCAST = """
import sys, time, torch
from torch import distributed as dist
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29544", rank=int(sys.argv[1]), world_size=int(sys.argv[2]))
torch.set_num_threads(1)
state = torch.zeros(int(sys.argv[3]))
times = []
for _ in range(5):
    dist.barrier()
    started = time.perf_counter()
    dist.broadcast(state, 0)
    dist.barrier()
    times.append(time.perf_counter() - started)
if sys.argv[1] == "0":
    print(sorted(times)[2])
"""


def bare_broadcast(workers: int, floats: int) -> float:
    """Seconds that gloo takes to broadcast the state alone."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", BROADCAST, str(rank), str(workers), str(floats)], stdout=subprocess.PIPE
        )
        for rank in range(workers)
    ]
    return float(started[0].communicate(timeout=120)[0])


def listening() -> tuple[float, float]:
    """Seconds that a worker's ear for changes costs in a step, and a step's."""
    with LocalBackend() as backend, tempfile.TemporaryDirectory() as name:
        folder = JobFolder(Path(name) / "job")
        job = JobSpec.of("bench", str(SCRIPT), (str(SMALL), "1", name), ("0", "1"), checkpoint_every=0)
        folder.create(job)
        Coordinator(job, folder, backend, Quiet()).run()
        steps = [event.seconds for event in read_events(folder.path / STREAM) if isinstance(event, StepDone)]
        return float((Path(name) / "listening").read_text()), statistics.median(steps)


def start_up(rounds: int) -> list[float]:
    """Seconds of processor time of ``vf run`` with a script that makes no step: mostly to load torch."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        script = Path(name) / "no_step.py"
        script.write_text("import torch, virtualflow\n")
        command = [sys.executable, "-m", "virtualflow.cli.main", "run", "--devices", "1", str(script)]
        for _ in range(rounds):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(command, env=os.environ | {"VF_HOME": name}, check=True, capture_output=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return found


@dataclass(frozen=True, slots=True)
class Line:
    """One event: how long training stood still, each time, and the longest that it may."""

    event: str
    seconds: list[float]
    limit: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def cells(self) -> list[str]:
        goal = "" if self.limit is None else f"< {self.limit * 1e3:.0f} ms"
        verdict = "" if self.limit is None else "met" if self.median < self.limit else "MISSED"
        each = ", ".join(f"{seconds * 1e3:.0f}" for seconds in self.seconds)
        return [self.event, f"{self.median * 1e3:.0f} ms", each, goal, verdict]


def run(*, quick: bool) -> None:
    """Pauses, then rivals through the same events, in turn."""
    rounds = 1 if quick else 3
    parameters = 64 * LARGE + LARGE * LARGE + 10 * LARGE + 2 * LARGE + 10
    bare = bare_broadcast(3, 2 * parameters)
    ours: dict[str, list[float]] = {"kill": [], "grow": []}
    theirs: dict[tuple[str, str], list[float]] = {}
    with LocalBackend() as backend:
        large = run_through(backend, 2, LARGE, [resize(4), resize(2)] * (rounds + 1))[2:]  # the first is to warm up
        small = run_through(backend, 2, SMALL, [resize(4), resize(2)] * rounds)
        killed = pauses_of(run_through(backend, 5, SMALL, [kill("3"), kill("0"), kill("2")] * rounds))
        for _ in range(rounds):
            ours["kill"] += pauses_of(run_through(backend, 3, SMALL, [kill("1")]))
            ours["grow"] += pauses_of(run_through(backend, 2, SMALL, [resize(3)]))
            for name, rival in (("torchrun", rivals.torchrun), ("torchft", rivals.torchft)):
                for act in ours:
                    theirs.setdefault((name, act), []).append(rival(SMALL, act))
    heard, step = listening()
    lines = [
        Line("bare broadcast of the state of 25M parameters and their momentum to 2 others", [bare]),
        Line("grow 2 to 4, 25M parameters", pauses_of(large[::2]), 0.1 + 1.5 * bare),
        Line("shrink 4 to 2, 25M parameters", pauses_of(large[1::2]), 0.1 + 1.5 * bare),
        Line("SIGKILL of 1 of 5 to the next committed step, less a step", killed, 0.25),
        Line("SIGKILL of 1 of 3", ours["kill"]),
        Line("grow 2 to 3", ours["grow"]),
        Line("from vf resize to the new group, in the background, 2 to 4", [c.background for c in small[::2]]),
        Line("vf run of a script without a step, processor time", start_up(rounds)),
    ]
    section = report.Section("elastic", quick=quick)
    section.show(
        "how long training stands still", ["event", "median", "each, ms", "goal", ""], [x.cells() for x in lines]
    )
    rows = []
    for (name, act), seconds in theirs.items():
        factor, goal = statistics.median(seconds) / statistics.median(ours[act]), 20.0 if name == "torchrun" else 1.0
        each = ", ".join(f"{lost:.2f}" for lost in seconds)
        verdict = "met" if factor >= goal else "MISSED"
        rows.append(
            [name, "kill 1 of 3" if act == "kill" else "grow 2 to 3", each, f"{factor:.0f}", f">= {goal:.0f}", verdict]
        )
    section.show("others, seconds lost", ["system", "event", "each", "times ours", "goal", ""], rows)
    part = heard / step
    section.show(
        "listening for changes, two devices",
        ["a step", "of which listening", "", "goal", ""],
        [[f"{step * 1e3:.1f} ms", f"{heard * 1e6:.1f} us", f"{part:.3%}", "< 1%", "met" if part < 0.01 else "MISSED"]],
    )
    section.save(
        {"lines": lines, "rivals": {f"{n}, {a}": s for (n, a), s in theirs.items()}, "listening": [heard, step]}
    )
