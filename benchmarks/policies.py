"""Schedulers of other papers: how fairly the worst treated job fares, and all of them on the same traces."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import artifacts, published, report
from virtualflow.cluster.job import Job, pools_of
from virtualflow.cluster.policies import registry
from virtualflow.cluster.policies.antman import busy
from virtualflow.cluster.policies.base import Policy
from virtualflow.cluster.policies.themis import LEASE_SECONDS, Themis
from virtualflow.cluster.throughput.goodput import Goodput
from virtualflow.cluster.throughput.model import Profiled, Throughput
from virtualflow.cluster.throughput.table import APART
from virtualflow.cluster.throughput.workloads import paper_speeds
from virtualflow.core.devices import Pool, parse_pools
from virtualflow.sim import costs, gavel_table, importers, metrics
from virtualflow.sim.compare import on_machines
from virtualflow.sim.engine import simulate
from virtualflow.sim.result import JobResult, Run

TRACES = Path(__file__).with_name("traces")
ANY_SIZE = ("wfs", "sjf", "srtf", "optimus", "themis", "pollux", "sia", "easyscale")  # jobs grow and shrink
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
    content = {"largest rho": rhos, "busy": _busy_sums(section), "same traces": _same_traces(section)}
    section.save(content | {"artifacts": artifacts.run(section)})


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


@dataclass(frozen=True)
class Setting:
    """A trace on a cluster, the same for every policy."""

    trace: str
    pools: Sequence[Pool]
    speeds: Throughput
    any_size: bool = False  # under elastic policies jobs have as many devices as they can use


def _settings() -> dict[str, Setting]:
    table = gavel_table.read(TRACES / "gavel-speeds.json")
    return {
        "160 jobs, 64 T4": Setting("pollux-6", on_machines(parse_pools("T4:64"), 4), artifacts.SPEEDS, any_size=True),
        "20 jobs, 8 V100": Setting("paper-20-jobs", parse_pools("V100:8"), paper_speeds()),
        "100 jobs, 4 V100 + 8 P100 + 16 K80": Setting("gavel-8-an-hour", parse_pools("V100:4,P100:8,K80:16"), table),
    }


def _same_traces(section: report.Section) -> dict[str, Any]:
    """Every policy on the same traces, at the measured costs of starts and resizes."""
    found: dict[str, Any] = {}
    for title, setting in _settings().items():
        found[title] = {name: _row(name, setting) for name in registry.BUILT_IN}
        rows = [[name, *(f"{row[key]:,.2f}" for key in COLUMNS), row["changes"]] for name, row in found[title].items()]
        section.show(title, ["", *COLUMNS, "changes what is trained"], rows)
    return found


COLUMNS = ("average", "median", "tail", "makespan", "fairness", "restarts", "device_hours")


def _row(name: str, setting: Setting) -> dict[str, Any]:
    policy, jobs = registry.make(name), importers.read(TRACES / f"{setting.trace}.json").jobs
    asked = {job.id: job for job in jobs}
    if setting.any_size and name in ANY_SIZE:
        jobs = tuple(artifacts.with_own_limits(jobs, policy))
    run = simulate(jobs, setting.pools, policy, setting.speeds, costs.MEASURED)
    alone = {name: _alone_seconds(job, setting) for name, job in asked.items()}
    whole = metrics.of(run)
    known = isinstance(setting.speeds, Goodput) and all(map(setting.speeds.knows, jobs))
    return {
        "average": whole.average_jct_seconds,
        "median": whole.median_jct_seconds,
        "tail": whole.tail_jct_seconds,
        "makespan": whole.makespan_seconds,
        "fairness": metrics.jain([each.jct_seconds / alone[each.job.id] for each in run.jobs]),
        "restarts": sum(_restarts(each, restarts=policy.restarts) for each in run.jobs),
        "device_hours": run.accounts.spent.assigned / 3600,
        "changes": ("yes, the batch" if known else "no: batch sizes unknown") if policy.changes_batch else "no",
    }


def _alone_seconds(job: Job, setting: Setting) -> float:
    """On the devices that the trace asks for, of the type where that is fastest, at the job's own batch."""
    best = 0.0
    for pool in setting.pools:
        if setting.speeds.usable(job, pool.device_type):
            (own,) = pools_of({pool.device_type: min(job.demand, pool.count)}, {pool.device_type: pool.machines})
            best = max(best, setting.speeds.speed(job, (own,)).steps_per_second)
    return costs.MEASURED.boot + job.steps / best


def _restarts(job: JobResult, *, restarts: bool) -> int:
    """How often it began again from a checkpoint: after a pause, or at each change where nobody is elastic."""
    return sum(
        after.start_seconds > before.end_seconds or (restarts and set(after.devices) != set(before.devices))
        for before, after in itertools.pairwise(job.segments)
    )
