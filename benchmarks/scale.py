"""Large clusters: a decision with 100,000 jobs on 16,384 devices, a whole Philly trace, a manager's tick, a coordinator."""

from __future__ import annotations

import statistics
import time
from typing import Any

from benchmarks import report
from benchmarks.decisions import PHILLY
from virtualflow.cluster.job import Job
from virtualflow.cluster.messages import Event, JobArrived, JobEnded, JobsRestored
from virtualflow.cluster.policies import registry
from virtualflow.cluster.scheduler import Scheduler
from virtualflow.cluster.throughput.model import Profiled
from virtualflow.core.devices import parse_pools
from virtualflow.sim import costs, importers, metrics
from virtualflow.sim.compare import Setting, on_machines
from virtualflow.sim.compare import run as simulate

TYPES, DEVICES, JOBS = 8, 16_384, 100_000


def run(*, quick: bool) -> None:
    section = report.Section("scale", quick=quick)
    section.save({"decisions": _decisions(section), "philly": None if quick else _philly(section)})


def _decisions(section: report.Section) -> dict[str, Any]:
    """Processor time of one event. All devices are taken; the other jobs wait."""
    rows, found = [], {}
    for demand in (4, 2):
        brain, now = _crowded(demand), 2.0
        events: dict[str, list[Event]] = {
            "a job arrives and has to wait": [
                JobArrived(now, Job(f"low{n}", now, demand, 1.0, priority=3.0)) for n in range(10)
            ],
            "a job ends": [JobEnded(now, f"r{n}") for n in range(10)],
            "a job of the highest priority arrives": [
                JobArrived(now, Job(f"high{n}", now, demand, 1.0, priority=30.0)) for n in range(10)
            ],
        }
        running = DEVICES // demand
        for name, some in events.items():
            milliseconds = [_milliseconds(brain, event) for event in some]
            median, most = statistics.median(milliseconds), max(milliseconds)
            rows.append([f"{running:,} jobs run: {name}", f"{median:.1f}", f"{most:.1f}"])
            found[f"{running}: {name}"] = {"median_ms": median, "max_ms": most}
    title = f"wfs, {JOBS:,} jobs, {DEVICES:,} devices of {TYPES} types: processor time of a decision, ms (goal: under 20)"
    section.show(title, ["", "median of 10", "most"], rows)
    return found


def _crowded(demand: int) -> Scheduler:
    pools = on_machines(parse_pools(",".join(f"T{k}:{DEVICES // TYPES}" for k in range(TYPES))), 8)
    brain = Scheduler(pools, registry.make("wfs"), Profiled())
    names, running = brain.placement.devices, DEVICES // demand
    jobs = [
        (Job(f"r{n}", 0.0, demand, 1.0, priority=10.0), tuple(names[n * demand : (n + 1) * demand]))
        for n in range(running)
    ]
    waiting = tuple(Job(f"q{n}", 1.0, demand, 1.0, priority=1.0 + n % 5) for n in range(JOBS - running))
    brain.handle(JobsRestored(1.0, tuple(jobs), waiting))
    return brain


def _milliseconds(brain: Scheduler, event: Event) -> float:
    begun = time.process_time()
    brain.handle(event)
    return (time.process_time() - begun) * 1e3


def _philly(section: report.Section) -> dict[str, Any] | None:
    if not PHILLY.exists():
        print(f"skipped: the Philly trace is not at {PHILLY}")
        return None
    trace = importers.read(PHILLY)
    begun = time.process_time()
    found = simulate(trace, "las", Setting(on_machines(parse_pools("V100:2500"), 8), Profiled(), costs.MEASURED))
    seconds, figures = time.process_time() - begun, metrics.of(found)
    row = [f"{seconds:.0f}", f"{found.events:,}", f"{figures.average_jct_seconds:,.0f}"]
    title = f"Philly, {len(trace.jobs):,} jobs on 2,500 devices under las (goal: under 300 s)"
    section.show(title, ["processor time, s", "events", "average JCT, s"], [row])
    return {"cpu_seconds": seconds, "events": found.events, "average_jct_seconds": figures.average_jct_seconds}
