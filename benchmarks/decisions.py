"""What a decision costs the scheduler, in processor time: the whole Philly trace, and one event by jobs and devices."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import published, report
from virtualflow.cluster.job import Job
from virtualflow.cluster.messages import Event, JobArrived, JobEnded
from virtualflow.cluster.policies import registry
from virtualflow.cluster.scheduler import Scheduler
from virtualflow.cluster.throughput.model import Profiled
from virtualflow.core.devices import parse_pools
from virtualflow.sim import costs, importers, metrics
from virtualflow.sim.compare import Setting, on_machines
from virtualflow.sim.compare import run as simulate


def run(*, quick: bool) -> None:
    section = report.Section("decisions", quick=quick)
    results: dict[str, Any] = {}
    path = published.find("philly.csv")
    if path is not None:
        results["philly"] = _philly(section, path, quick)
    section.save(results | _cost(section, quick))


def _philly(section: report.Section, path: Path, quick: bool) -> dict[str, Any]:
    trace = importers.read(path)
    if quick:
        trace = replace(trace, jobs=trace.jobs[:8000])
    rows, results = [], {}
    # At 2,500 devices nobody waits; at 600 they do.
    for devices, policy in ((2500, "wfs"), (2500, "priority"), (600, "wfs"), (600, "priority")):
        pools = on_machines(parse_pools(f"V100:{devices}"), 8)
        begun = time.process_time()
        found = simulate(trace, policy, Setting(pools, Profiled(), costs.MEASURED))
        seconds, figures = time.process_time() - begun, metrics.of(found)
        results[f"{policy}, {devices}"] = {"cpu_seconds": seconds, "events": found.events, "metrics": figures}
        rows.append([f"{policy}, {devices:,} devices", f"{seconds:.1f}", f"{seconds / found.events * 1e6:.0f}",
                     f"{figures.average_jct_seconds:,.0f}", f"{figures.utilization:.1%}"])  # fmt: skip
    columns = ["", "CPU seconds (goal at 2,500: under 60)", "microseconds an event", "average JCT, s", "utilisation"]
    section.show(f"Philly, {len(trace.jobs):,} jobs", columns, rows)
    return results


def _cost(section: report.Section, quick: bool) -> dict[str, Any]:
    """What one event costs the scheduler, by the jobs that wait, and by the devices and with them the running jobs."""
    queued = [1_000, 10_000] if quick else [1_000, 10_000, 100_000]
    devices = [100, 1_000, 10_000] if quick else [100, 1_000, 10_000, 100_000]
    by_queue = {policy: {n: _with_queue(policy, n) for n in queued} for policy in ("wfs", "priority")}
    by_devices: dict[str, dict[int, float]] = {}
    for policy in ("wfs", "priority"):
        by_devices[policy] = {n: _with_devices(policy, n, crowded=False) for n in devices}
        by_devices[f"{policy}, crowded"] = {n: _with_devices(policy, n, crowded=True) for n in devices}
    for title, found in (("jobs that wait, 64 devices", by_queue), ("devices, a job on every 4", by_devices)):
        counts = list(next(iter(found.values())))
        rows = [[name, *(f"{seconds * 1e6:,.0f}" for seconds in costs_.values())] for name, costs_ in found.items()]
        section.show(f"Microseconds an event, by {title}", ["", *(f"{n:,}" for n in counts)], rows)
    _plot(by_queue, by_devices)
    return {"by queue": by_queue, "by devices": by_devices}


def _with_queue(policy: str, waiting: int) -> float:
    brain = Scheduler(parse_pools("V100:64"), registry.make(policy), Profiled())
    for number in range(16):
        brain.handle(JobArrived(0.0, Job(f"r{number}", 0.0, 4, 1.0, priority=10.0)))
    for number in range(waiting):
        brain.handle(JobArrived(1.0 + number, Job(f"q{number}", 1.0 + number, 4, 1.0, priority=1.0 + number % 5)))
    now = 2.0 + waiting
    events: list[Event] = []
    for number in range(16):
        events.append(JobArrived(now, Job(f"n{number}", now, 4, 1.0, priority=3.0)))
        events.append(JobEnded(now, f"r{number}"))
    return _timed(brain, events)


def _with_devices(policy: str, devices: int, *, crowded: bool) -> float:
    brain = Scheduler(on_machines(parse_pools(f"V100:{devices}"), 8), registry.make(policy), Profiled())
    for number in range(devices // 4):
        brain.handle(JobArrived(0.0, Job(f"r{number}", 0.0, 4, 1.0)))
    events: list[Event] = []
    for number in range(20):
        if not crowded:
            events.append(JobEnded(1.0, f"r{number}"))
        events.append(JobArrived(1.0, Job(f"n{number}", 1.0, 4, 1.0)))
        if crowded:
            events.append(JobEnded(1.0, f"r{number}"))
    return _timed(brain, events)


def _timed(brain: Scheduler, events: Sequence[Event]) -> float:
    begun = time.process_time()
    for event in events:
        brain.handle(event)
    return (time.process_time() - begun) / len(events)


def _plot(by_queue: dict[str, dict[int, float]], by_devices: dict[str, dict[int, float]]) -> None:
    plt = report.pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8))
    titles = ("jobs that wait (64 devices)", "devices (a job on every 4)")
    for axis, found, title in zip(axes, (by_queue, by_devices), titles, strict=True):
        for name, values in found.items():
            axis.plot(list(values), [seconds * 1e6 for seconds in values.values()], marker="o", label=name)
        axis.set(xscale="log", yscale="log", xlabel=title, ylabel="microseconds an event")
        axis.legend()
    figure.tight_layout()
    figure.savefig(report.figure_path("scheduling-cost"), dpi=120)
