"""What a manager costs a job, a decision with many jobs, and answers to many clients."""

from __future__ import annotations

import http.client
import json
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks import live, report
from benchmarks.live import DEVICE
from virtualflow.cluster.job import Job
from virtualflow.cluster.messages import Event, JobArrived, JobChanged, JobEnded
from virtualflow.cluster.policies import registry
from virtualflow.cluster.scheduler import Scheduler
from virtualflow.cluster.throughput.model import Profiled
from virtualflow.core.devices import parse_pools
from virtualflow.manager.client import Client

QUEUED, CLIENTS = 1000, 50
WINDOW = 20  # steps


def overhead(section: report.Section, home: Path, rounds: int) -> dict[str, Any]:
    """The same training with ``vf run`` and under a manager, in turn: the median time of a step, by the events."""
    steps, nodes, width = 300, 8, 512
    alone: list[float] = []
    managed: list[float] = []
    shares: list[float] = []  # of a core, that the manager itself takes meanwhile
    for round_ in range(rounds + 1):
        place = home / str(round_)

        def by_itself(place: Path = place) -> None:
            live.vf(place / "run", "run", "--devices", 2, live.SCRIPT, steps, nodes, width)
            alone.append(_step_seconds(place / "run"))

        def under_a_manager(place: Path = place) -> None:
            with live.manager(place / "manager", "--devices", "2") as client:
                begun, used = time.perf_counter(), live.manager_seconds(place / "manager")
                live.wait(client, [client.post("/api/jobs", **live.body("job", steps, nodes, 2, 1.0, width))["id"]])
                spent = live.manager_seconds(place / "manager") - used
                shares.append(spent / (time.perf_counter() - begun))
            managed.append(_step_seconds(place / "manager"))

        turns = [by_itself, under_a_manager]
        for turn in turns if round_ % 2 else reversed(turns):
            turn()
    ratio = report.ratio(alone[1:], managed[1:])  # the first round warms up
    row = [
        f"{statistics.median(alone[1:]) * 1e3:.1f} ms",
        f"{statistics.median(managed[1:]) * 1e3:.1f} ms",
        ratio,
        ">= 0.98",
        "met" if ratio.median >= 0.98 else "MISSED",
        f"{statistics.median(shares):.1%} of a core",
    ]
    section.show(
        f"A job on 2 devices, {rounds} rounds in turn",
        ["a step with vf run", "under a manager", "throughput (middle half)", "goal", "", "the manager itself"],
        [row],
    )
    return {"alone": alone, "managed": managed, "ratio": ratio, "shares": shares}


def _step_seconds(home: Path) -> float:
    (folder,) = (home / "jobs").glob("*")
    times = [at for at, _ in live.trail(home, folder.name).steps][WINDOW:]
    # Over many steps at a time, because events tell the time in milliseconds.
    return statistics.median((after - before) / WINDOW for before, after in zip(times, times[WINDOW:], strict=False))


def decisions(section: report.Section) -> dict[str, list[float]]:
    """One event with 1,000 jobs: all but a few wait, or nearly all run. CPU time, which other load disturbs less."""
    rows, found = [], {}
    for policy in ("wfs", "priority", "srtf"):
        for devices in (16, 2000):
            brain = Scheduler(parse_pools(f"{DEVICE}:{devices}"), registry.make(policy), Profiled())
            for number in range(QUEUED):
                brain.handle(JobArrived(float(number), _job(number)))
            events: list[Event] = []
            for number in range(50):
                now = 2000.0 + number
                events.append(JobArrived(now, _job(QUEUED + number)))
                events.append(JobChanged(now, replace(_job(QUEUED + number), priority=9.0)))
                events.append(JobEnded(now, str(number)))
            seconds = sorted(_timed(brain, event) for event in events)
            found[f"{policy}, {devices}"] = seconds
            rows.append([f"{policy}, {devices:,} devices", *_milliseconds(seconds), _verdict(seconds[-1], 0.05)])
    columns = ["", "median, ms", "99th percentile, ms", "longest, ms", "goal: under 50 ms"]
    section.show(f"A scheduling decision with {QUEUED:,} jobs, CPU time", columns, rows)
    return found


def _job(number: int) -> Job:
    return Job(str(number), float(number), 1 + number % 4, 600.0, priority=1.0 + number % 10)


def _timed(brain: Scheduler, event: Event) -> float:
    begun = time.thread_time()
    brain.handle(event)
    return time.thread_time() - begun


def requests(section: report.Section, home: Path, turns: int) -> dict[str, list[float]]:
    """A manager with 1,000 queued jobs and no device free answers one client, and 50 at once."""
    small = live.body("queued", 10, 2, 2, 1.0) | {"modules": {live.SCRIPT.name: "print('never run')\n"}}
    rows, found = [], {}
    with live.manager(home, "--devices", "2") as client:
        for device in ("0", "1"):
            client.post(f"/api/devices/{device}/drain")
        for _ in range(QUEUED):
            client.post("/api/jobs", **small)
        for clients, pause_seconds in ((1, 0.0), (CLIENTS, 1.0), (CLIENTS, 0.0)):
            who = f"{clients} client(s), {'one request a second each' if pause_seconds else 'without a pause'}"
            for what, seconds in _together(client, small, clients, turns, pause_seconds).items():
                found[f"{what}, {who}"] = seconds
                rows.append([f"{who}: {what}", *_milliseconds(seconds), f"{len(seconds)}"])
    columns = ["", "median, ms", "99th percentile, ms", "longest, ms", "requests"]
    section.show(f"Answers of a manager with {QUEUED:,} queued jobs", columns, rows)
    return found


def _together(
    client: Client, job: dict[str, Any], clients: int, turns: int, pause_seconds: float
) -> dict[str, list[float]]:
    """Each client asks for one thing after the other; a fifth of what they do are submits. Seconds to the last byte."""
    known = client.get("/api/jobs")[0]["id"]
    asks = {
        "list of all jobs": ("GET", "/api/jobs", None),
        "one job": ("GET", f"/api/jobs/{known}", None),
        "submit": ("POST", "/api/jobs", json.dumps(job)),
    }
    order = ["list of all jobs", "one job", "one job", "list of all jobs", "submit"]
    seconds: dict[str, list[float]] = {what: [] for what in asks}

    def ask(first: int) -> None:
        time.sleep(pause_seconds * first / clients)
        for turn in range(turns):
            what = order[(first + turn) % len(order)]
            begun = time.perf_counter()
            _ask(client, *asks[what])
            seconds[what].append(time.perf_counter() - begun)
            time.sleep(max(0.0, begun + pause_seconds - time.perf_counter()))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {what: sorted(values) for what, values in seconds.items()}


def _ask(client: Client, verb: str, path: str, text: str | None) -> None:
    """As the client does, but 50 threads of one process do not wait for each other's parsing."""
    where = urlsplit(client.address)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60.0)
    headers = {"Authorization": f"Bearer {client.token}", "Content-Type": "application/json"}
    connection.request(verb, path, text, headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    if answer.status >= 400:
        raise RuntimeError(f"{verb} {path}: {answer.status}")


def _milliseconds(ordered: Sequence[float]) -> list[str]:
    places = (len(ordered) // 2, min(len(ordered) - 1, int(0.99 * len(ordered))), len(ordered) - 1)
    return [f"{ordered[place] * 1e3:.2f}" for place in places]


def _verdict(seconds: float, limit: float) -> str:
    return "met" if seconds < limit else "MISSED"
