"""What mixed allocations gain if jobs choose node sizes anew for each, as in the paper, and if they can't, as live."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks import report
from benchmarks.gavel import KINDS, TRACES, average_jct, drawn_jobs
from virtualflow.cluster.throughput.free_sizes import FreeSizes
from virtualflow.cluster.throughput.model import Profiled, Throughput
from virtualflow.core.profile import Communication
from virtualflow.sim import importers
from virtualflow.sim.metrics import interval
from virtualflow.solver.profile_files import built_in


def run(*, quick: bool) -> None:
    section, seeds = report.Section("node-sizes", quick=quick), 5 if quick else 100
    silent = [replace(built_in(name), communication=Communication()) for name in sorted({kind[0] for kind in KINDS})]
    settings: dict[str, Throughput] = {
        "free": FreeSizes(),
        "free, communication": FreeSizes(communication=True),
        "fixed": Profiled(silent),
        "fixed, communication": Profiled(),
    }
    rows, found = [], []
    for rate in (4, 8, 12):
        own = importers.read(TRACES / f"paper-mixed-{rate}.json").jobs
        traces = [own, *(drawn_jobs(rate, seed) for seed in range(seeds))]
        for name, speeds in settings.items():
            las, mixed = ([average_jct(jobs, policy, speeds) for jobs in traces] for policy in ("las", "las-mixed"))
            lower = [1 - after / before for before, after in zip(las, mixed, strict=True)]
            drawn = interval(lower[1:])
            shown = f"{drawn.mean:.1%} ± {drawn.half_width or 0:.1%}"
            rows.append([rate, name, f"{las[0]:,.0f}", f"{mixed[0]:,.0f}", f"{lower[0]:.1%}", shown])
            entry: dict[str, Any] = {"rate": rate, "sizes": name, "las": las[0], "las-mixed": mixed[0]}
            found.append(entry | {"lower": lower[0], "drawn": drawn})
    columns = ["jobs/h", "node sizes", "las, s", "las-mixed, s", "lower by", f"lower by, {seeds} traces"]
    section.show("average JCT on the paper's traces, and how much lower on traces like them", columns, rows)
    section.save({"seeds": seeds, "found": found})
