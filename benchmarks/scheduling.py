"""The paper's elastic scheduling experiments in virtual time.

The step-time model is calibrated on the author's static runs only; elastic runs are predictions.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import report
from virtualflow.cluster.policies.base import Options
from virtualflow.cluster.throughput.workloads import paper_speeds
from virtualflow.core.devices import parse_pools
from virtualflow.sim import costs, importers, metrics
from virtualflow.sim.compare import Setting, compare
from virtualflow.sim.compare import run as simulate
from virtualflow.sim.costs import Costs
from virtualflow.sim.generate import Recipe, generate
from virtualflow.sim.result import Run
from virtualflow.sim.trace import Trace

TRACES = Path(__file__).with_name("traces")
SMALL, LARGE = "paper-3-jobs", "paper-20-jobs"
PAPER = {
    SMALL: ["-38%", "-45%", "", "", ""],
    LARGE: ["-45.5%", "", "-47.6%", "-99.3%", "71.1% to 90.6%"],
}
COLUMNS = ["makespan", "JCT of priority 10", "median JCT", "median queueing", "utilisation"]


def run(*, quick: bool) -> None:
    section = report.Section("scheduling", quick=quick)
    results = {"static runs": _static_runs(section), "elastic": _elastic(section)}
    section.save(results | {"seeds": _seeds(section, 3 if quick else 20)})


def setting(devices: str, price: Costs, rounding: str = "any") -> Setting:
    speeds = paper_speeds(even=price is costs.PAPER)
    return Setting(parse_pools(devices), speeds, price, Options(round=rounding))


def measured_runs(trace: str) -> dict[str, float]:
    """How long each job ran under the author's static scheduler, from start to finish."""
    runs: dict[str, dict[str, float]] = json.loads((TRACES / "static-runs.json").read_text())
    return runs[trace]


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
        drawn: dict[str, Run] = {}
        for price in (costs.PAPER, costs.MEASURED):
            static = simulate(trace, "priority", setting(devices, price))
            for rounding in ("pow2", "any"):
                chosen = setting(devices, price, rounding)
                elastic = simulate(trace, "wfs", chosen)
                title = f"{price.name} costs, {rounding}"
                rows.append([title, *_gains(static, elastic)])
                results[f"{name}, {title}"] = {
                    "static": metrics.of(static),
                    "elastic": metrics.of(elastic),
                    "jct_seconds of priority 10": [_urgent(static), _urgent(elastic)],
                }
                drawn |= {f"wfs, {title}": elastic, f"priority, {price.name} costs": static}
        report.allocation_page(f"scheduling-{name}", drawn, parse_pools(devices))
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
