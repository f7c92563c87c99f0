"""The solver of grids: its time on many devices and stages, how far it is from the best grid, and its forecasts.

Where every grid can be compared, the gap is that to the best one. Beyond, it is that to a bound that no grid beats, and
to what a walk finds that is several times as long; the best grid is somewhere between those two.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from typing import Any

from benchmarks import grid_forecasts, report
from virtualflow.core.devices import Pool, parse_pools
from virtualflow.core.stage_profile import Link
from virtualflow.errors import SolverError
from virtualflow.solver.grid_costs import GridCosts, TypeCosts, UnitBytes
from virtualflow.solver.grid_forecast import forecast
from virtualflow.solver.grid_proof import Question
from virtualflow.solver.grid_search import GridSearch, solve_grid
from virtualflow.solver.grid_walk import MOST_RUNS, improved

GIGABYTE = 10**9
LARGE = {  # devices, their memory in gigabytes, how many times slower a type is, virtual nodes, gigabytes of weights
    "all fits": ("V100:256", {"V100": math.inf}, {"V100": 1.0}, 256, 1),
    "a device holds 5 stages": ("V100:256", {"V100": 40.0}, {"V100": 1.0}, 256, 64),
    "512 virtual nodes": ("V100:256", {"V100": 40.0}, {"V100": 1.0}, 512, 64),
    "two types": ("V100:128,P100:128", {"V100": 40.0, "P100": 16.0}, {"V100": 1.0, "P100": 4.0}, 256, 64),
}
STAGES = 64
MEDIUM = [(4, 11, 3), (6, 16, 6), (8, 16, 8), (16, 16, 8)]  # 44 to 256 cells
LONGER = 4  # times the solver's own walk
TINY = [(2, 2, 3), (2, 3, 3), (3, 3, 2), (2, 4, 3), (3, 4, 2)]  # stages, virtual nodes, devices


def run(*, quick: bool) -> None:
    section = report.Section("grids", quick=quick)
    times = {name: _large(name, 1 if quick else 3) for name in LARGE}
    rows = [[name, LARGE[name][0], found["shape"], f"{found['cpu_seconds']:.2f}", f"{found['seconds']:.2f}"]
            for name, found in times.items()]  # fmt: skip
    section.show(f"{STAGES} stages", ["", "devices", "answer", "processor, s", "clock, s"], rows)
    gaps = [_gaps(*size, 10 if quick else 40) for size in TINY]
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
    beyond = [_beyond(*size, is_even, 2 if quick else 5) for size in MEDIUM for is_even in (True, False)]
    columns = [
        "stages, nodes, devices",
        "stages are",
        "candidate",
        "worst",
        "over the bound",
        "worst",
        "a longer walk",
        "most",
    ]
    names = ("candidate", "most_candidate", "over", "most_over", "gain", "most_gain")
    rows = [[each["size"], each["costs"], *(f"{each[name]:.0%}" for name in names)] for each in beyond]
    section.show("beyond what can be compared", columns, rows)
    forecasts = grid_forecasts.compared(quick=quick)
    rows = [
        [name, f"{each['forecast']:.3f}", f"{min(each['medians']):.3f}", f"{each['ratio']:.2f}"]
        for name, each in forecasts["grids"].items()
    ]
    section.show("forecasts, s a step", ["grid", "forecast", "measured", "measured / forecast"], rows)
    section.save({"large": times, "gaps": gaps, "beyond": beyond, "forecasts": forecasts})


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
        question = _any(draw, stages, nodes, devices)
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


def _beyond(stages: int, nodes: int, devices: int, is_even: bool, instances: int) -> dict[str, Any]:
    """How far answers are above the bound, and what a longer walk from them still gains, over random instances."""
    draw = random.Random(stages * 100 + nodes)
    candidates, over, gains = list[float](), list[float](), list[float]()
    while len(over) < instances:
        question = (_usual if is_even else _any)(draw, stages, nodes, devices)
        pools = [Pool(name, (count,)) for name, count in question.counts.items()]
        try:
            answer = solve_grid(question.costs, pools, nodes, question.kind, question.copies)
        except SolverError:
            continue
        if (candidate := GridSearch(question.costs, pools, nodes, question.kind, question.copies).best()) is not None:
            candidates.append(candidate.step_seconds / answer.best.step_seconds - 1)
        longer = forecast(improved(question, answer.best.cells, LONGER * MOST_RUNS), question.costs, question.kind)
        over.append(answer.best.step_seconds / answer.least_seconds - 1)
        gains.append(1 - longer.step_seconds / answer.best.step_seconds)
    return {
        "size": (stages, nodes, devices),
        "costs": "alike" if is_even else "anything",
        "instances": instances,
        "candidate": statistics.median(candidates),
        "most_candidate": max(candidates),
        "over": statistics.median(over),
        "most_over": max(over),
        "gain": statistics.median(gains),
        "most_gain": max(gains),
    }


def _usual(draw: random.Random, stages: int, nodes: int, devices: int) -> Question:
    """A model of equal layers, but for the first and the last stage; a slower type is that for all of them."""
    names = draw.choice([("V100",), ("V100", "P100")])
    counts = {"V100": devices} if len(names) == 1 else {"V100": devices // 2, "P100": devices - devices // 2}
    row = [draw.uniform(0.3, 1.5), *[1.0] * (stages - 2), draw.uniform(0.5, 3.0)]
    state = [draw.randint(10, 40), *[20] * (stages - 2), draw.randint(10, 40)]
    units = tuple(UnitBytes((stage,), size, 2 * size, 2 * size) for stage, size in enumerate(state))
    slow = {"V100": 1.0, "P100": draw.uniform(1.5, 4.0)}
    whole = sum(5 * size for size in state)
    memory = draw.choice([math.inf, whole, whole / 2, 3 * whole / devices])
    types = {
        name: TypeCosts(
            tuple(seconds * slow[name] for seconds in row),
            tuple(2 * seconds * slow[name] for seconds in row),
            (0.05,) * stages,
            memory,
        )
        for name in names
    }
    link = draw.choice([Link(), Link(0.01, 1000.0), Link(0.05, 100.0)])
    costs = GridCosts(types, (2,) * stages, (0,) * stages, (5,) * stages, units, link)
    return Question(costs, counts, nodes, "1f1b", draw.choice([1, 2]))


def _any(draw: random.Random, stages: int, nodes: int, devices: int) -> Question:
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
