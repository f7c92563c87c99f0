"""Pollux' and Sia's policies beside the figures that their authors' own simulators print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks import published, report
from virtualflow.cluster.job import Job
from virtualflow.cluster.policies import registry
from virtualflow.cluster.policies.base import Policy
from virtualflow.cluster.policies.tiresias import Tiresias
from virtualflow.cluster.throughput.model import Profiled
from virtualflow.core.devices import Pool, parse_pools
from virtualflow.sim import importers, metrics, pollux_applications
from virtualflow.sim.compare import on_machines
from virtualflow.sim.costs import Costs
from virtualflow.sim.engine import simulate

TRACES = Path(__file__).with_name("traces")
SPEEDS = pollux_applications.beside(Profiled())
RESTARTS = Costs("Pollux' simulator", boot=30.0, resume=30.0, restart=30.0)
# Average JCT in s of each workload in Pollux' repository (branch osdi21-artifact, simulator/results-jobload/*-1.0).
POLLUX = {
    "tiresias": (2473.7, 5145.0, 3876.3, 3280.3, 3501.0, 3469.7, 5479.9, 5079.7),
    "optimus": (4087.1, 6913.9, 3944.0, 5967.8, 5656.2, 5301.9, 7290.9, 6293.8),
    "pollux": (2088.8, 3322.9, 2188.5, 2721.0, 2673.7, 2446.1, 3616.1, 2951.9),
}


def run(section: report.Section) -> dict[str, Any]:
    return {"pollux": _pollux(section), "sia": _sia(section)}


def with_own_limits(jobs: Sequence[Job], policy: Policy) -> list[Job]:
    """The same jobs, asking for as many devices as they can use: at their batch, or at any where that may change."""
    speeds = SPEEDS.adapting() if policy.changes_batch else SPEEDS
    limits = [speeds.most_devices(job) for job in jobs]
    return [
        replace(job, demand=most, virtual_nodes=max(job.virtual_nodes, most))
        for job, most in zip(jobs, limits, strict=True)
    ]


def _pollux(section: report.Section) -> dict[str, dict[int, float]]:
    """Its eight workloads on 64 T4, four on a machine; where they are not here, the one that is carried over."""
    pools = on_machines(parse_pools("T4:64"), 4)
    found: dict[str, dict[int, float]] = {}
    for name in (*POLLUX, "sia"):
        found[name] = {}
        for number in range(1, 9) if name in POLLUX else (6,):
            path = published.find(f"workload-{number}.csv") if number != 6 else TRACES / "pollux-6.json"
            if path is not None:
                found[name][number] = _average_jct(importers.read(path).jobs, name, pools)
    rows = []
    for name, jcts in found.items():
        theirs = POLLUX.get(name)
        pairs = [(jct, theirs[number - 1]) for number, jct in jcts.items()] if theirs else []
        theirs_and_off = ["", ""]
        if pairs:
            theirs_and_off = [f"{mean(b for _, b in pairs):,.0f}", f"{mean(a / b for a, b in pairs) - 1:+.1%}"]
        rows.append([name, f"{jcts[6]:,.0f}", f"{mean(jcts.values()):,.0f}", *theirs_and_off])
    columns = ["", "workload 6", f"mean of {len(found['pollux'])}", "Pollux' simulator", "off by"]
    section.show("average JCT in s, Pollux' workloads, 64 T4", columns, rows)
    return found


def _average_jct(jobs: Sequence[Job], name: str, pools: Sequence[Pool]) -> float:
    policy: Policy = registry.make(name)
    if name == "tiresias":
        policy = Tiresias(thresholds=(16 * 3600.0,), quantum_seconds=60.0)  # as in Pollux' evaluation
    policy.round_seconds = 60.0
    jobs = jobs if name == "tiresias" else with_own_limits(jobs, policy)
    return metrics.of(simulate(jobs, pools, policy, SPEEDS, RESTARTS)).average_jct_seconds


def _sia(section: report.Section) -> dict[str, list[float]]:
    """Its ten Saturn workloads on its cluster of three types, average JCT in h."""
    pools = [*on_machines(parse_pools("T4:24"), 4), *on_machines(parse_pools("RTX2080Ti:24,A100:16"), 8)]
    found: dict[str, list[float]] = {}
    paths = [published.find(f"sia-simulator/workloads/saturn/workload-{number}.csv") for number in range(1, 11)]
    for name in ("las", "sia"):
        for path in filter(None, paths):
            jobs, policy = importers.read(path).jobs, registry.make(name)
            own = with_own_limits(jobs, policy) if policy.changes_batch else jobs
            run = simulate(own, pools, policy, SPEEDS, RESTARTS)
            found.setdefault(name, []).append(metrics.of(run).average_jct_seconds / 3600)
    rows = [[name, f"{mean(jcts):.2f}"] for name, jcts in found.items()]
    section.show("average JCT in h, ten Saturn workloads", ["", "here"], rows)
    return found
