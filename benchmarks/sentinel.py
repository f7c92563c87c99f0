"""What a sentinel costs that watches one virtual node of 16: a second run of that part, checksums and digests.

Two devices of 8 virtual nodes each check one in every second step, and compare sums and replicas in every 16th, on
average: so the costs of all segments together count. Node sizes are small: a step without much
computing shows the most.
"""

from __future__ import annotations

from benchmarks import report
from benchmarks.arena import Contender, race
from benchmarks.contender import SENTINEL
from benchmarks.settings import SETTINGS

VIRTUAL_NODES = 16
STEPS = 4  # of a segment
ROUNDS = 8  # with their comparisons: 32 steps
NODE_SIZES = {"resnet": 8, "gpt": 1, "mlp": 8}


def run(*, quick: bool) -> None:
    section = report.Section("sentinel", quick=quick)
    results, rows = {}, []
    for setting in SETTINGS:
        contenders = [
            Contender(kind, kind, setting, VIRTUAL_NODES, devices=2, steps=STEPS, node_size=NODE_SIZES[setting])
            for kind in ("exact", "sentinel")
        ]
        runs = race(contenders, 2 if quick else ROUNDS, warmup=0 if quick else 1)
        figures = {
            "step time": sum(runs.seconds["sentinel"]) / sum(runs.seconds["exact"]),
            "processor time": sum(runs.cpu_seconds["sentinel"]) / sum(runs.cpu_seconds["exact"]),
            "disturbance": runs.disturbance,
            "seconds": runs.seconds,
            "cpu_seconds": runs.cpu_seconds,
        }
        results[setting] = figures
        rows.append(
            [SETTINGS[setting].title, *(figures[key] for key in ("step time", "processor time", "disturbance"))]
        )
    title = f"a sentinel at {SENTINEL}, against the same job without one (goal: at most 1/16 + 1%)"
    section.show(title, ["", "step time", "processor time", "others"], rows)
    section.save(results)
