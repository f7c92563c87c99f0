"""The solver of grids: its time on many devices and stages, and how far its candidates are from the best grid."""

from __future__ import annotations

import math
import random
import statistics
import time
from typing import Any

from benchmarks import report
from virtualflow.core.devices import Pool, parse_pools
from virtualflow.core.stage_profile import Link
from virtualflow.errors import SolverError
from virtualflow.solver.grid_costs import GridCosts, TypeCosts, UnitBytes
from virtualflow.solver.grid_proof import Question
from virtualflow.solver.grid_search import GridSearch, solve_grid

GIGABYTE = 10**9
LARGE = {  # devices, their memory in gigabytes, how many times slower a type is, virtual nodes, gigabytes of weights
    "all fits": ("V100:256", {"V100": math.inf}, {"V100": 1.0}, 256, 1),
    "a device holds 5 stages": ("V100:256", {"V100": 40.0}, {"V100": 1.0}, 256, 64),
    "512 virtual nodes": ("V100:256", {"V100": 40.0}, {"V100": 1.0}, 512, 64),
    "two types": ("V100:128,P100:128", {"V100": 40.0, "P100": 16.0}, {"V100": 1.0, "P100": 4.0}, 256, 64),
}
STAGES = 64
TINY = [(2, 2, 3), (2, 3, 3), (3, 3, 2), (2, 4, 3), (3, 4, 2)]  # stages, virtual nodes, devices


def run(*, quick: bool) -> None:
    section = report.Section("grids", quick=quick)
    times = {name: _large(name, 1 if quick else 5) for name in LARGE}
    rows = [[name, LARGE[name][0], found["shape"], f"{found['cpu_seconds']:.2f}", f"{found['seconds']:.2f}"]
            for name, found in times.items()]  # fmt: skip
    section.show(f"{STAGES} stages", ["", "devices", "answer", "processor, s", "clock, s"], rows)
    gaps = [_gaps(*size, 10 if quick else 100) for size in TINY]
    columns = [
        "stages",
        "virtual nodes",
        "devices",
        "instances",
        "every grid compared",
        "candidates best",
        "no candidate fits",
        "worst",
    ]
    rows = [
        [*gap["size"], gap["instances"], gap["proven"], gap["best"], gap["none_fits"], f"{gap['worst']:.1%} slower"]
        for gap in gaps
    ]
    section.show("candidates against every grid", columns, rows)
    section.save({"large": times, "gaps": gaps})


def _large(name: str, rounds: int) -> dict[str, Any]:
    devices, memory, slow, nodes, weights = LARGE[name]
    draw = random.Random(2)
    row = [draw.uniform(0.5e-3, 1.5e-3) for _ in range(STAGES)]
    types = {
        kind: TypeCosts(
            tuple(seconds * slow[kind] for seconds in row),
            tuple(2 * seconds * slow[kind] for seconds in row),
            (1e-3,) * STAGES,
            memory[kind] * GIGABYTE,
        )
        for kind in slow
    }
    part = weights * GIGABYTE // STAGES
    units = tuple(UnitBytes((stage,), part, 2 * part, 2 * part) for stage in range(STAGES))
    costs = GridCosts(types, (GIGABYTE // 10,) * STAGES, (0,) * STAGES, (10**6,) * STAGES, units, Link(1e-5, 1e10))
    laps = []
    for _ in range(rounds):
        began, clock = time.process_time(), time.perf_counter()
        answer = solve_grid(costs, parse_pools(devices), nodes)
        laps.append((time.process_time() - began, time.perf_counter() - clock))
    processor, seconds = (statistics.median(column) for column in zip(*laps, strict=True))
    return {
        "shape": answer.best.shape,
        "step_seconds": answer.best.step_seconds,
        "no_grid_below_seconds": answer.least_seconds,
        "cpu_seconds": processor,
        "seconds": seconds,
    }


def _gaps(stages: int, nodes: int, devices: int, instances: int) -> dict[str, Any]:
    """How much slower the best candidate is than the best of all grids, over random instances."""
    draw, gaps, known = random.Random(stages * 100 + nodes), [], 0
    while len(gaps) < instances:
        question = _tiny(draw, stages, nodes, devices)
        pools = [Pool(name, (count,)) for name, count in question.counts.items()]
        found = GridSearch(question.costs, pools, nodes, question.kind, question.copies).best()
        try:
            answer = solve_grid(question.costs, pools, nodes, question.kind, question.copies)
        except SolverError:
            continue
        known += answer.is_proven
        gaps.append(found.step_seconds / answer.best.step_seconds - 1 if found is not None else math.inf)
    return {
        "size": (stages, nodes, devices),
        "instances": instances,
        "proven": f"{known / instances:.0%}",
        "best": f"{sum(gap < 1e-9 for gap in gaps) / instances:.0%}",
        "none_fits": sum(map(math.isinf, gaps)),
        "worst": max(filter(math.isfinite, gaps)),
        "mean": statistics.mean(filter(math.isfinite, gaps)),
    }


def _tiny(draw: random.Random, stages: int, nodes: int, devices: int) -> Question:
    names = draw.choice([("cpu",), ("V100", "P100")])
    counts = {"cpu": devices} if len(names) == 1 else {"V100": 1, "P100": devices - 1}
    units = tuple(UnitBytes((stage,), *(draw.randint(0, 20) for _ in range(3))) for stage in range(stages))

    def row(length: int) -> tuple[float, ...]:
        return tuple(draw.uniform(0.1, 3.0) for _ in range(length))

    memory = draw.choice([math.inf, 80.0, 120.0, 200.0])
    types = {name: TypeCosts(row(stages), row(stages), (0.1,) * stages, memory) for name in names}
    sizes = tuple(draw.randint(0, 20) for _ in range(stages))
    link = draw.choice([Link(), Link(0.05, 100.0), Link(0.5, 10.0)])
    costs = GridCosts(types, sizes, (0,) * stages, sizes, units, link)
    return Question(costs, counts, nodes, "1f1b", draw.choice([1, 2]))
