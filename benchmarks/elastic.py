"""Resizes and deaths: how long training stands still, here and under torchrun."""

from __future__ import annotations

import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from virtualflow.events import STREAM, Regrouped, StepDone, read_timed_events
from virtualflow.runtime.coordinator import Coordinator
from virtualflow.runtime.folder import JobFolder, JobSpec
from virtualflow.runtime.local import LocalBackend

SCRIPT = Path(__file__).with_name("elastic_job.py")
LARGE, SMALL = 5000, 256  # 25 million parameters, and few
GIVE_UP = 120.0  # seconds until torchrun counts as not coming back
WARM_UP, AFTER = 12, 12  # steps before something happens, and after


class Quiet:
    """Takes what workers print, and shows nothing."""

    def write(self, device: str, stream: str, data: bytes, *, lead: bool) -> None: ...
    def close(self) -> None: ...


def run_through(
    backend: LocalBackend, devices: int, width: int, acts: list[Callable[[Coordinator], None]]
) -> list[float]:
    """Train, do each of *acts* in turn, and return how long each made training stand still, in seconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = JobFolder(Path(name) / "job")
        names = tuple(str(device) for device in range(devices))
        job = JobSpec("bench", str(SCRIPT), (str(width), "1000"), names, checkpoint_every=0)
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
        return _pauses(list(read_timed_events(folder.path / STREAM)), struck)


def _pauses(events: list[tuple[float, Any]], struck: list[float]) -> list[float]:
    """For each strike: how long after it, or after the last step, the next one was committed, less one step."""
    steps = [(at, event.seconds) for at, event in events if isinstance(event, StepDone)]
    ordinary = statistics.median(seconds for _, seconds in steps)
    pauses = []
    for begun in struck:
        told, change = next((at, e) for at, e in events if isinstance(e, Regrouped) and at > begun)
        if change.cause == "loss":  # told at the boundary after the step that it interrupted
            pauses.append(max(at for at, _ in steps if at <= told) - begun - ordinary)
        else:
            after, seconds = min((at, seconds) for at, seconds in steps if at > told)
            pauses.append(after - max(at for at, _ in steps if at <= told) - seconds)
    return pauses


def kill(device: str) -> Callable[[Coordinator], None]:
    def act(coordinator: Coordinator) -> None:
        pids = {worker["device"]: worker["pid"] for worker in coordinator.state()["workers"]}
        os.kill(pids[device], signal.SIGKILL)

    return act


def resize(devices: int) -> Callable[[Coordinator], None]:
    return lambda coordinator: coordinator.resize(devices)


def torchrun(width: int, act: str) -> float:
    """Time lost under torchrun when a worker is killed, or when a second agent brings a third worker.

    Its own waiting time for more agents is set to the shortest, so that it does not lose by a default.
    """
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        command = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-id=b",
                   f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-conf=last_call_timeout=1", "--max-restarts=3",
                   "--nnodes=1" if act == "kill" else "--nnodes=1:2"]  # fmt: skip
        script = ["-m", "benchmarks.elastic_torchrun", str(width), str(folder)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        agents: list[subprocess.Popen[bytes]] = []

        def add(workers: int) -> None:
            with (folder / f"agent-{len(agents)}.log").open("wb") as log:
                arguments = [*command, f"--nproc-per-node={workers}", *script]
                agents.append(subprocess.Popen(arguments, stdout=log, stderr=log, env=environment))

        add(3 if act == "kill" else 2)
        try:
            _wait(lambda: len(_steps(folder)) > WARM_UP)
            if act == "kill":
                os.kill(int((folder / "pid-1").read_text()), signal.SIGKILL)
            else:
                add(1)
            before = {process for _, process in _progress(folder)}
            _wait(lambda: sum(process not in before for _, process in _progress(folder)) > AFTER, GIVE_UP)
            gaps = [later - sooner for (sooner, _), (later, _) in pairwise(_progress(folder))]
            return max(gaps) - statistics.median(gaps)
        except TimeoutError:
            print((folder / "agent-0.log").read_text()[-2000:], file=sys.stderr)
            raise
        finally:
            (folder / "enough").touch()
            for agent in agents:
                agent.terminate()
            for agent in agents:
                try:
                    agent.wait(timeout=40)
                except subprocess.TimeoutExpired:
                    agent.kill()


def _steps(folder: Path) -> list[tuple[float, int, int]]:
    """When each step was made, which, and by which process."""
    if not (folder / "steps").exists():
        return []
    rows = [line.split() for line in (folder / "steps").read_text().splitlines()]
    return [(float(row[0]), int(row[1]), int(row[2])) for row in rows if len(row) == 3]


def _progress(folder: Path) -> list[tuple[float, int]]:
    """The steps that had not been made before, and by which process. Those made a second time are lost too."""
    highest, news = 0, []
    for at, step, process in _steps(folder):
        if step > highest:
            highest = step
            news.append((at, process))
    return news


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("torchrun did not get there in time")
        time.sleep(0.1)


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


def measure() -> Iterator[tuple[str, float]]:
    """All figures, in seconds, as they come."""
    parameters = 64 * LARGE + LARGE * LARGE + 10 * LARGE + 2 * LARGE + 10
    yield "broadcast of the state to 2 others", bare_broadcast(3, 2 * parameters)
    with LocalBackend() as backend:
        grow, shrink, again = run_through(backend, 2, LARGE, [resize(4), resize(2), resize(4)])
        yield "grow 2 to 4", min(grow, again)
        yield "shrink 4 to 2", shrink
        yield "kill 1 of 5", statistics.median(run_through(backend, 5, SMALL, [kill("3"), kill("0"), kill("2")]))
        yield "kill 1 of 3", statistics.median(run_through(backend, 3, SMALL, [kill("1"), kill("1")]))
        yield "grow 2 to 3", run_through(backend, 2, SMALL, [resize(3)])[0]
    yield "torchrun, kill 1 of 3", torchrun(SMALL, "kill")
    yield "torchrun, grow 2 to 3", torchrun(SMALL, "grow")


def main() -> None:
    """``python -m benchmarks.elastic``: about six minutes."""
    for name, seconds in measure():
        print(f"{1000 * seconds:10.1f} ms  {name}", flush=True)


if __name__ == "__main__":
    main()
