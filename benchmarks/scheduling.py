"""The paper's elastic scheduling experiments in virtual time, and what a decision of the scheduler costs.

The step-time model is calibrated on the author's static runs only; elastic runs are predictions.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import charts, report
from virtualflow.cluster.job import Job
from virtualflow.cluster.messages import Event, JobArrived, JobEnded
from virtualflow.cluster.policies import registry
from virtualflow.cluster.policies.base import Options
from virtualflow.cluster.scheduler import Scheduler
from virtualflow.cluster.throughput.model import Profiled
from virtualflow.cluster.throughput.workloads import paper_speeds
from virtualflow.core.devices import parse_pools
from virtualflow.sim import costs, importers, metrics
from virtualflow.sim.compare import Setting, compare, on_machines
from virtualflow.sim.compare import run as simulate
from virtualflow.sim.costs import Costs
from virtualflow.sim.generate import Recipe, generate
from virtualflow.sim.result import Run
from virtualflow.sim.trace import Trace

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
TRACES = DATA / "virtualflow_traces"
SMALL, LARGE = "3jobs_4gpus_v1", "medium20_12jph"
PAPER = {
    SMALL: ["-38%", "-45%", "", "", ""],
    LARGE: ["-45.5%", "", "-47.6%", "-99.3%", "71.1% to 90.6%"],
}
COLUMNS = ["makespan", "JCT of priority 10", "median JCT", "median queueing", "utilisation"]


def run(*, quick: bool) -> None:
    section = report.Section("scheduling")
    results: dict[str, Any] = {}
    if TRACES.exists():
        results["static runs"] = _static_runs(section)
        results["elastic"] = _elastic(section)
    else:
        print(f"left out: the paper's traces are not in {DATA}")
    results["seeds"] = _seeds(section, 3 if quick else 20)
    if (DATA / "philly").exists():
        results["philly"] = _philly(section, quick)
    results["cost"] = _cost(section, quick)
    section.save(results)


def setting(devices: str, price: Costs, rounding: str = "any") -> Setting:
    speeds = paper_speeds(even=price is costs.PAPER)
    return Setting(parse_pools(devices), speeds, price, Options(round=rounding))


def measured_runs(trace: str) -> dict[str, float]:
    """How long each job ran under the author's static scheduler, from start to finish."""
    with (TRACES / "static_runs.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["trace"] == trace]
    return {row["job"]: float(row["seconds_from_start_to_finish"]) for row in rows}


def calibrated(trace: Trace, name: str, devices: str) -> Trace:
    """The same jobs with as much work as their static runs took: for the 3-job trace, which no profile explains."""
    found = simulate(trace, "priority", setting(devices, costs.PAPER))
    boot, measured, jobs = costs.PAPER.boot, measured_runs(name), []
    for each in found.jobs:
        factor = (measured[each.job.id] - boot) / (each.end_seconds - each.start_seconds - boot)
        jobs.append(replace(each.job, steps=each.job.steps * factor))
    return replace(trace, jobs=tuple(jobs))


def _static_runs(section: report.Section) -> dict[str, list[float]]:
    trace, measured = importers.read(TRACES / f"{LARGE}.json"), measured_runs(LARGE)
    found = simulate(trace, "priority", setting("V100:8", costs.PAPER))
    rows, results = [], {}
    for each in sorted(found.jobs, key=lambda job: int(job.job.id)):
        seconds, real = each.end_seconds - each.start_seconds, measured[each.job.id]
        results[each.job.id] = [real, seconds]
        job = each.job
        rows.append([job.id, job.workload, job.demand, job.virtual_nodes, f"{real:.0f}", f"{seconds:.0f}",
                     f"{seconds / real - 1:+.1%}"])  # fmt: skip
    columns = ["job", "workload", "devices", "virtual nodes", "measured, s", "simulated, s", "off by"]
    section.show("Static runs of the 20-job trace, 8 V100 (goal: within 15%)", columns, rows)
    return results


def _elastic(section: report.Section) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name, devices in ((SMALL, "V100:4"), (LARGE, "V100:8")):
        trace = importers.read(TRACES / f"{name}.json")
        if name == SMALL:
            trace = calibrated(trace, name, devices)
        rows: list[list[str]] = [["the paper", *PAPER[name]]]
        for price in (costs.PAPER, costs.MEASURED):
            static = simulate(trace, "priority", setting(devices, price))
            for rounding in ("pow2", "any"):
                chosen = setting(devices, price, rounding)
                elastic = simulate(trace, "wfs", chosen)
                title = f"{price.name} costs, {rounding}"
                rows.append([title, *_gains(static, elastic)])
                results[f"{name}, {title}"] = [metrics.of(static), metrics.of(elastic)]
                if name == LARGE and price is costs.PAPER:
                    charts.allocation(elastic, chosen.pools, report.figure_path(f"scheduling-wfs-{rounding}"))
                    charts.allocation(static, chosen.pools, report.figure_path("scheduling-priority"))
        section.show(f"{name}, {devices}: wfs against static priority", ["", *COLUMNS], rows)
    return results


def _gains(static: Run, elastic: Run) -> list[str]:
    before, after = metrics.of(static), metrics.of(elastic)

    def change(name: str) -> str:
        old, new = getattr(before, name), getattr(after, name)
        return f"{new / old - 1:+.1%}" if old else "0"

    return [
        change("makespan_seconds"),
        f"{_urgent(elastic) / _urgent(static) - 1:+.1%}",
        change("median_jct_seconds"),
        change("median_queueing_seconds"),
        f"{before.utilization:.1%} to {after.utilization:.1%}",
    ]


def _urgent(found: Run) -> float:
    times = [job.jct_seconds for job in found.jobs if job.job.priority == 10]
    return sum(times) / len(times)


def _seeds(section: report.Section, seeds: int) -> dict[str, Any]:
    """The paper's mix again, drawn many times: one trace may flatter anyone."""
    trace, results, rows = generate(Recipe(20, "12/h")), {}, []
    for price in (costs.PAPER, costs.MEASURED):
        found = compare(trace, ["wfs", "srtf", "priority", "fifo"], setting("V100:8", price), seeds)
        for name, outcome in found.policies.items():
            each = outcome.intervals
            results[f"{name}, {price.name}"] = each
            seconds = [each[key] for key in ("average_jct_seconds", "makespan_seconds", "median_queueing_seconds")]
            share = each["utilization"]
            rows.append([f"{name}, {price.name} costs", *(f"{i.mean:,.0f} ± {i.half_width or 0:,.0f}" for i in seconds),
                         f"{share.mean:.1%} ± {share.half_width or 0:.1%}"])  # fmt: skip
    columns = ["", "average JCT, s", "makespan, s", "median queueing, s", "utilisation"]
    section.show(f"20 jobs of the paper's mix at 12 an hour on 8 V100, {seeds} seeds", columns, rows)
    return results


def _philly(section: report.Section, quick: bool) -> dict[str, Any]:
    trace = importers.read(DATA / "philly" / "philly.csv")
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
