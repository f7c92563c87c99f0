"""Schedulers of other papers: how fairly the worst treated job fares, and all of them on the same traces."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import published, report
from virtualflow.cluster.job import Job
from virtualflow.cluster.policies import registry
from virtualflow.cluster.policies.antman import busy
from virtualflow.cluster.policies.base import Policy
from virtualflow.cluster.policies.themis import LEASE_SECONDS, Themis
from virtualflow.cluster.throughput.model import Profiled
from virtualflow.cluster.throughput.table import APART
from virtualflow.cluster.throughput.workloads import paper_speeds
from virtualflow.core.devices import parse_pools
from virtualflow.sim import costs, gavel_table, importers, metrics
from virtualflow.sim.engine import simulate
from virtualflow.sim.result import Run

TRACES = Path(__file__).with_name("traces")
OTHERS = ("fifo", "tiresias", "optimus", "themis", "gandiva", "antman")
DEVICES = 4  # of the traces by which fairness is compared
CONTENDERS: Mapping[str, Callable[[], Policy]] = {
    f"`themis`, f = 0.8, {LEASE_SECONDS / 60:.0f} min": Themis,
    "leases of 5 min": lambda: Themis(lease_seconds=300.0),
    "40 min": lambda: Themis(lease_seconds=2400.0),
    "80 min": lambda: Themis(lease_seconds=4800.0),
    "f = 0.4": lambda: Themis(fairness=0.4),
    "f = 0": lambda: Themis(fairness=0.0),
    **{f"`{name}`": lambda name=name: registry.make(name) for name in ("gandiva", "tiresias", "fifo")},
}


def run(*, quick: bool) -> None:
    section = report.Section("policies", quick=quick)
    rhos = _largest_rhos(section, seeds=3 if quick else 20)
    section.save({"largest rho": rhos, "same traces": _same_traces(section), "busy": _busy_sums(section)})


def drawn(seed: int) -> list[Job]:
    """24 jobs for 4 devices, one every 10 minutes."""
    chance = random.Random(seed)
    seconds, jobs = 0.0, []
    for number in range(24):
        demand = chance.choice((1, 2, 4))
        jobs.append(Job(str(number), seconds, demand, chance.uniform(600, 20_000) / demand))
        seconds += chance.expovariate(1 / 600)
    return jobs


def rho(run: Run, devices: int) -> dict[str, float]:
    """Each job's rho at its end: N is the average number of jobs there in its time."""
    found = {}
    for each in run.jobs:
        start, end = each.job.arrival_seconds, each.end_seconds
        overlaps = (min(end, o.end_seconds) - max(start, o.job.arrival_seconds) for o in run.jobs)
        present = sum(max(0.0, overlap) for overlap in overlaps) / (end - start)
        share = min(each.job.demand, devices / present)
        found[each.job.id] = (end - start) / (each.job.steps * each.job.demand / share)
    return found


def largest_rho(policy: Policy, seed: int) -> float:
    """Of the worst treated job of a drawn trace."""
    result = simulate(drawn(seed), parse_pools(f"V100:{DEVICES}"), policy, Profiled(), costs.NONE)
    return max(rho(result, DEVICES).values())


def _largest_rhos(section: report.Section, seeds: int) -> dict[str, list[float]]:
    found = {name: [largest_rho(make(), seed) for seed in range(seeds)] for name, make in CONTENDERS.items()}
    rows = [[name, f"{statistics.mean(each):.2f}", f"{max(each):.2f}"] for name, each in found.items()]
    section.show(f"largest rho, over {seeds} drawn traces", ["", "mean", "most"], rows)
    return found


def _busy_sums(section: report.Section) -> dict[str, list[float]]:
    """AntMan's model against Gavel's pairs: device time that two different jobs on one device have in all, sorted."""
    table = gavel_table.read(published.find("simulation_throughputs.json") or TRACES / "gavel-speeds.json")
    found: dict[str, list[float]] = {}
    for kind, pairs in table.shared.items():
        jobs = {name: Job(name, 0.0, 1, 1.0, name) for (name, count), _ in pairs if count == 1}
        sums = []
        for one, other in itertools.combinations(jobs.values(), 2):
            left = table.slowdown(one, [other], kind), table.slowdown(other, [one], kind)
            if min(left) > 0:
                sums.append(left[0] * busy(one, kind, table) + left[1] * busy(other, kind, table))
        if sums and not kind.endswith(APART):
            found[kind] = sorted(sums)
    rows = [
        [kind, len(sums), *(f"{_quantile(sums, part):.2f}" for part in (0.05, 0.5, 0.95))]
        for kind, sums in found.items()
    ]
    section.show(
        "device time of two jobs on one device, in all; the model: 1", ["", "pairs", "5%", "median", "95%"], rows
    )
    return found


def _quantile(ordered: Sequence[float], part: float) -> float:
    return ordered[round(part * (len(ordered) - 1))]


def _same_traces(section: report.Section) -> dict[str, Any]:
    """The paper's 20 jobs at the measured costs, and Gavel's 100 with its table and without costs."""
    paper, gavel = (importers.read(TRACES / f"{name}.json").jobs for name in ("paper-20-jobs", "gavel-8-an-hour"))
    table = gavel_table.read(TRACES / "gavel-speeds.json")
    found: dict[str, Any] = {}
    for few, many in (("wfs", "las"), *((name, name) for name in OTHERS)):
        label = f"`{few}`" if few == many else f"`{few}` / `{many}`"
        small = simulate(paper, parse_pools("V100:8"), registry.make(few), paper_speeds(even=False), costs.MEASURED)
        large = simulate(gavel, parse_pools("V100:4,P100:8,K80:16"), registry.make(many), table, costs.NONE)
        found[label] = {"20 jobs": metrics.of(small), "100 jobs": metrics.of(large)}
    rows = [
        [label, *(f"{each.average_jct_seconds:,.0f}, {each.fairness:.2f}" for each in runs.values())]
        for label, runs in found.items()
    ]
    section.show("average JCT in s, and fairness", ["", "20 jobs", "100 jobs"], rows)
    return found
