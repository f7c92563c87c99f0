"""Speeds learnt live: ``las-mixed`` against ``las`` under a real manager with emulated devices, and simulated."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import live, report
from benchmarks.cluster_job import NODE_SIZE
from virtualflow.cluster.job import Job
from virtualflow.cluster.policies import registry
from virtualflow.cluster.policies.base import Options
from virtualflow.cluster.throughput.model import Profiled
from virtualflow.core.devices import parse_pools
from virtualflow.core.emulation import Emulated
from virtualflow.core.profile import Point, Profile, Workload
from virtualflow.sim import costs, metrics
from virtualflow.sim.engine import simulate

CLUSTER = "P100:2,K80:4"
WAVE_SECONDS = {"P100": 0.08, "K80": 0.24}  # Gavel's K80 is three times slower than its P100, or more
NODES, DEMAND = 12, 6
ROUND_SECONDS = 30.0  # several times what a start takes: `las` moves jobs between types at every round
POLICIES = ("las", "las-mixed")


def run(*, quick: bool) -> None:
    section = report.Section("learning", quick=quick)
    steps = 40 if quick else 120
    arrivals = (0.0, 0.2 * steps)  # at first one is alone, and has idle devices to give back when the other comes
    live_jcts = {name: _live(name, steps, arrivals) for name in POLICIES}
    start = statistics.median(seconds for found in live_jcts.values() for seconds in found["starts"])
    predicted = {name: _simulated(name, steps, found["arrivals"], start) for name, found in live_jcts.items()}
    rows = []
    for title, jcts in (("live", {name: found["jct"] for name, found in live_jcts.items()}), ("simulated", predicted)):
        rows.append([title, *(f"{jcts[name]:.1f}" for name in POLICIES), f"{1 - jcts['las-mixed'] / jcts['las']:.1%}"])
    section.show("average JCT in s, two jobs", ["", *POLICIES, "lower by"], rows)
    given_back = {name: found["given_back"] for name, found in live_jcts.items()}
    section.show("devices given back by a job that went on", ["", *POLICIES], [["live", *given_back.values()]])
    section.show("from devices to the first step, median", ["s"], [[f"{start:.1f}"]])
    errors = [
        abs(seen["predicted_step_seconds"] / seen["step_seconds"] - 1)
        for found in live_jcts.values()
        for speed in found["speeds"]
        for seen in speed["measured"]
    ]
    found = {"steps": steps, "live": live_jcts, "simulated": predicted, "start_seconds": start}
    error = {"median_error": statistics.median(errors), "largest_error": max(errors), "layouts": len(errors)}
    section.save(found | error)


def _live(policy: str, steps: int, arrivals: tuple[float, ...]) -> dict[str, Any]:
    emulated = {name: Emulated(points=((NODE_SIZE, seconds),)).to_json() for name, seconds in WAVE_SECONDS.items()}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        options = ("--devices", CLUSTER, "--policy", policy, "--round-seconds", str(ROUND_SECONDS))
        with live.manager(home, *options) as client:
            begun, ids = time.monotonic(), []
            for number, arrival in enumerate(arrivals):
                time.sleep(max(0.0, begun + arrival - time.monotonic()))
                body = live.body(f"job-{number}", steps, NODES, DEMAND, 1.0) | {"emulated": emulated}
                ids.append(client.post("/api/jobs", **body)["id"])
            live.wait(client, ids)
            jobs = [client.get(f"/api/jobs/{job_id}") for job_id in ids]
            trails = [live.trail(home, job_id) for job_id in ids]
    jct = statistics.mean(job["ended"] - job["submitted"] for job in jobs)
    began = jobs[0]["submitted"] // ROUND_SECONDS * ROUND_SECONDS  # the round in which the first one came
    return {
        "jct": jct,
        "arrivals": [job["submitted"] - began for job in jobs],
        "starts": [trail.steps[0][0] - job["started"] for job, trail in zip(jobs, trails, strict=True)],
        "resizes": [job["resizes"] for job in jobs],
        "given_back": sum(len(change.left) for trail in trails for _, change in trail.changes),
        "speeds": [job["speed"] for job in jobs],
        "overran_waves": sum(trail.overran for trail in trails),
        "digests": sorted({trail.digest for trail in trails}),
    }


def _simulated(policy: str, steps: int, arrivals: Sequence[float], start_seconds: float) -> float:
    """With the arrivals of the live run, rounds that begin when its rounds did, and starts that take as long."""
    profiles = {name: Profile(name, (Point(NODE_SIZE, seconds),)) for name, seconds in WAVE_SECONDS.items()}
    jobs = [
        Job(str(number), arrival, DEMAND, steps, "job", NODE_SIZE, NODES) for number, arrival in enumerate(arrivals)
    ]
    made = registry.make(policy, Options(round_seconds=ROUND_SECONDS))
    made.restarts = False  # live jobs are elastic under any policy
    speeds = Profiled([Workload("job", profiles)])
    paid = replace(costs.MEASURED, boot=start_seconds, resume=start_seconds)
    return metrics.of(simulate(jobs, parse_pools(CLUSTER), made, speeds, paid)).average_jct_seconds
