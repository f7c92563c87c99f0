"""Gavel's policies: its own figures, mixed allocations over arrival rates, and how fast programs and rounds are."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import published, report
from virtualflow.cluster.job import Job
from virtualflow.cluster.linear_programs import LinearProgram, max_min
from virtualflow.cluster.policies import registry
from virtualflow.cluster.policies.base import Options
from virtualflow.cluster.policies.gavel import PAPER, Entry, Gavel
from virtualflow.cluster.policies.las import Las
from virtualflow.cluster.snapshot import Snapshot
from virtualflow.cluster.throughput.free_sizes import FreeSizes
from virtualflow.cluster.throughput.model import Throughput
from virtualflow.cluster.throughput.table import GAVEL, GAVEL_ROUND_SECONDS
from virtualflow.core.devices import parse_pools
from virtualflow.sim import costs, gavel_table, importers, metrics
from virtualflow.sim.engine import simulate
from virtualflow.sim.metrics import Interval, interval

TRACES = Path(__file__).with_name("traces")
GAVELS_TRACE, GAVELS_SPEEDS = TRACES / "gavel-8-an-hour.json", TRACES / "gavel-speeds.json"
CLUSTER = "V100:4,P100:8,K80:16"
POLICIES = ("las", "las-mixed", "las-mixed-columns")
KINDS = (  # workload, node size, batch, steps: the jobs of the paper's simulation
    ("bert-base", 32, 2048, (40,)),
    ("bert-base", 32, 2048, (320,)),
    ("resnet50", 64, 8192, (156,)),
    ("transformer", 2048, 65536, (500, 1000)),
)


def run(*, quick: bool) -> None:
    section = report.Section("gavel", quick=quick)
    content: dict[str, Any] = {}
    content["gavel"] = _like_gavel(section)
    content["luck"] = _luck(section, draws=5 if quick else 40)
    content["traces"] = _paper_traces(section)
    content["rates"] = _rates(section, seeds=5 if quick else 100)
    content["programs"] = _programs(section, (128,) if quick else (128, 512, 2048))
    section.save(content)


def _like_gavel(section: report.Section) -> list[dict[str, Any]]:
    """Its own simulator's setting. Time is this process's own: others' load on the machine does not count."""
    rows, found = [], []
    for rate, path, speeds in _gavels_traces():
        trace = importers.read(path)
        for compat in (GAVEL, None):
            table = gavel_table.read(speeds, whole_steps_seconds=GAVEL_ROUND_SECONDS if compat else None)
            best = None
            for _ in range(3):
                policy = registry.make("las", Options(compat=compat))
                assert isinstance(policy, Gavel)
                began = time.process_time()
                jct = metrics.of(simulate(trace.jobs, parse_pools(CLUSTER), policy, table, costs.NONE))
                seconds = time.process_time() - began
                best = seconds if best is None else min(best, seconds)
            assert best is not None
            speed = policy.rounds / best
            reference = "3,836.8" if compat and rate == 8 else ""
            name = "Gavel's rules" if compat else "ours"
            rows.append(
                [
                    *(rate, name, f"{jct.average_jct_seconds:,.1f}", reference, policy.rounds, policy.solved),
                    *(f"{speed:,.0f}", "met" if speed >= 6000 else "MISSED"),
                ]
            )
            found.append({"rate": rate, "compat": compat, "jct": jct.average_jct_seconds, "rounds_per_second": speed})
    columns = ["jobs/h", "rules", "average JCT, s", "Gavel itself", "rounds", "programs", "rounds/s", "goal 6,000"]
    section.show("100 jobs of Gavel's generator, LAS with speeds, 4 V100 + 8 P100 + 16 K80", columns, rows)
    return found


def _gavels_traces() -> Iterator[tuple[int, Path, Path]]:
    """Jobs an hour, the trace, and the speeds. One is carried over; the others need all of Gavel's table."""
    yield 8, GAVELS_TRACE, GAVELS_SPEEDS
    speeds = published.find("simulation_throughputs.json")
    for rate in (2, 4, 12):
        path = published.find(f"vf_like_{rate}jph_seed0.trace")
        if path is not None and speeds is not None:
            yield rate, path, speeds


def _paper_traces(section: report.Section) -> list[dict[str, Any]]:
    """With Gavel's coefficient, a mean over types weighted by devices, and with the paper's, a plain mean."""
    speeds, rows, found = FreeSizes(), [], []
    for compat in (None, PAPER):
        for rate in (4, 8, 12):
            jobs = importers.read(TRACES / f"paper-mixed-{rate}.json").jobs
            jcts = [average_jct(jobs, name, speeds, compat) for name in POLICIES]
            lower = (f"{1 - jct / jcts[0]:.1%}" for jct in jcts[1:])
            rows.append([compat or "Gavel's", rate, *(f"{jct:,.0f}" for jct in jcts), *lower])
            found.append({"rate": rate, "compat": compat, **dict(zip(POLICIES, jcts, strict=True))})
    columns = ["coefficient", "jobs/h", *POLICIES, "mixed: lower by", "columns: lower by"]
    section.show("the paper's simulation, average JCT in s. The paper: up to 29.2%, 26.4% at 8 jobs/h", columns, rows)
    return found


class Shaken(Las):
    """Least attained service with coefficients off by a billionth: the same optimum, by another of its solutions."""

    def __init__(self, seed: int, compat: str | None) -> None:
        super().__init__(Options(compat=compat))
        self._chance = np.random.default_rng(seed)

    def program(self, entries: Sequence[Entry], snapshot: Snapshot) -> LinearProgram:
        program = super().program(entries, snapshot)
        return replace(program, value=program.value * (1 + 1e-9 * self._chance.random(len(program.value))))


def _luck(section: report.Section, draws: int) -> dict[str, list[float]]:
    """Optima are not unique: how far does the average JCT depend on which one the solver happens to name?"""
    table = gavel_table.read(GAVELS_SPEEDS, whole_steps_seconds=GAVEL_ROUND_SECONDS)
    settings: dict[str, tuple[Sequence[Job], Throughput, str | None]] = {
        "Gavel's trace and rules, 8 jobs/h": (importers.read(GAVELS_TRACE).jobs, table, GAVEL),
        "the paper's trace, 8 jobs/h": (importers.read(TRACES / "paper-mixed-8.json").jobs, FreeSizes(), None),
    }
    rows, found = [], {}
    for name, (jobs, speeds, compat) in settings.items():
        jcts = sorted(
            metrics.of(
                simulate(jobs, parse_pools(CLUSTER), Shaken(seed, compat), speeds, costs.NONE)
            ).average_jct_seconds
            for seed in range(draws)
        )
        found[name] = jcts
        rows.append([name, *(f"{jct:,.0f}" for jct in (jcts[0], jcts[len(jcts) // 2], jcts[-1]))])
    section.show(f"las, average JCT in s over {draws} tiny disturbances", ["", "least", "median", "most"], rows)
    return found


def _rates(section: report.Section, seeds: int) -> list[dict[str, Any]]:
    speeds, rows, found = FreeSizes(), [], []
    for rate in range(1, 13):
        jcts = {name: [average_jct(drawn_jobs(rate, seed), name, speeds) for seed in range(seeds)] for name in POLICIES}
        lower = {
            name: interval([1 - own / base for own, base in zip(jcts[name], jcts["las"], strict=True)])
            for name in POLICIES[1:]
        }
        means = {name: interval(jcts[name]) for name in POLICIES}
        rows.append(
            [rate, *(_shown(means[name], ",.0f") for name in POLICIES), *(_shown(lower[n], ".1%") for n in lower)]
        )
        found.append({"rate": rate, "jct": means, "lower": lower})
    columns = ["jobs/h", *POLICIES, "mixed: lower by", "columns: lower by"]
    section.show(f"average JCT in s over {seeds} seeds, with 95% intervals", columns, rows)
    _plot(found)
    return found


def average_jct(jobs: Sequence[Job], name: str, speeds: Throughput, compat: str | None = None) -> float:
    policy = registry.make(name, Options(compat=compat))
    run = simulate(jobs, parse_pools(CLUSTER), policy, speeds, costs.NONE)
    return metrics.of(run).average_jct_seconds


def drawn_jobs(rate: float, seed: int) -> list[Job]:
    """20 jobs like those of the paper's simulation."""
    chance, seconds, jobs = random.Random(1000 * seed + int(rate)), 0.0, []
    for number in range(20):
        workload, size, batch, steps = chance.choice(KINDS)
        priority = chance.choice((1.0, 5.0, 10.0))
        jobs.append(Job(str(number), seconds, 16, chance.choice(steps), workload, size, batch // size, priority))
        seconds += chance.expovariate(rate / 3600)
    return jobs


def _programs(section: report.Section, sizes: Sequence[int]) -> list[dict[str, float]]:
    rows, found = [], []
    for jobs in sizes:
        program = _random_program(jobs)
        ours, objective = _best_seconds(lambda program=program: max_min(program).objective)
        theirs, same = _best_seconds(lambda program=program: _through_cvxpy(program))
        assert abs(objective - same) <= 1e-6 * objective, (objective, same)
        met = "met" if ours <= theirs else "MISSED"
        rows.append([jobs, f"{ours * 1e3:.1f}", f"{theirs * 1e3:.1f}", f"{theirs / ours:.1f}", met])
        found.append({"jobs": jobs, "milliseconds": ours * 1e3, "cvxpy_milliseconds": theirs * 1e3})
    columns = ["jobs", "ours, ms", "cvxpy with HiGHS, ms", "ratio", "goal: at most"]
    section.show("the LAS program, processor time, best of 5", columns, rows)
    return found


def _random_program(jobs: int) -> LinearProgram:
    """Three types with an eighth as many devices as jobs, half as many, and as many; speeds a factor of 30 apart."""
    draw = np.random.default_rng(0)
    demand = draw.choice([1.0, 2.0, 4.0, 8.0], size=jobs, p=[0.7, 0.1, 0.15, 0.05])
    value = (draw.lognormal(size=(jobs, 1)) * draw.uniform(1, 10, size=(jobs, 3))).ravel()
    usage = np.zeros((3 * jobs, 3))
    usage[np.arange(3 * jobs), np.tile(np.arange(3), jobs)] = np.repeat(demand, 3)
    return LinearProgram(jobs, np.repeat(np.arange(jobs), 3), value, usage, np.array([jobs / 8, jobs / 2, jobs]))


def _through_cvxpy(program: LinearProgram) -> float:
    """As Gavel writes it, with a modelling layer."""
    import cvxpy as cp

    jobs = program.jobs
    value, demand = program.value.reshape(jobs, 3), program.usage.sum(axis=1).reshape(jobs, 3)
    x = cp.Variable((jobs, 3), nonneg=True)
    objective = cp.Maximize(cp.min(cp.sum(cp.multiply(value, x), axis=1)))
    limits = [cp.sum(x, axis=1) <= 1, cp.sum(cp.multiply(demand, x), axis=0) <= program.capacity]
    return float(cp.Problem(objective, limits).solve(solver="HIGHS"))


def _best_seconds(solve: Callable[[], float]) -> tuple[float, float]:
    seconds = []
    for _ in range(5):
        began = time.process_time()
        objective = solve()
        seconds.append(time.process_time() - began)
    return min(seconds), objective


def _shown(found: Interval, spec: str) -> str:
    return f"{found.mean:{spec}} ± {found.half_width or 0:{spec}}"


def _plot(found: Sequence[dict[str, Any]]) -> None:
    plt = report.pyplot()
    figure, axis = plt.subplots(figsize=(7, 4))
    rates = [entry["rate"] for entry in found]
    for name, label in zip(POLICIES[1:], ("leftovers offered (the paper)", "mixtures in the program"), strict=True):
        means = [100 * entry["lower"][name].mean for entry in found]
        halves = [100 * (entry["lower"][name].half_width or 0) for entry in found]
        axis.errorbar(rates, means, yerr=halves, marker="o", capsize=3, label=label)
    axis.axhline(29.2, color="grey", linestyle=":", label="the paper's most, 29.2%")
    axis.set(xlabel="jobs arriving per hour", ylabel="average JCT lower than Gavel's by, %")
    axis.legend()
    figure.tight_layout()
    figure.savefig(report.figure_path("gavel"), dpi=150)
    plt.close(figure)
