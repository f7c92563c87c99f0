"""What a sentinel costs that watches one virtual node of 16: a second run of that part, checksums and digests.

Two devices of 8 virtual nodes each check one in every second step, and compare replicas in every 16th. A segment has
one round of that; the comparison falls into every eighth.
"""

from __future__ import annotations

from benchmarks import report
from benchmarks.arena import Contender, race
from benchmarks.contender import SENTINEL
from benchmarks.settings import SETTINGS

VIRTUAL_NODES = 16
STEPS = 2  # of a segment


def run(*, quick: bool) -> None:
    section = report.Section("sentinel", quick=quick)
    results, rows = {}, []
    for setting in SETTINGS:
        contenders = [
            Contender(kind, kind, setting, VIRTUAL_NODES, devices=2, steps=STEPS) for kind in ("exact", "sentinel")
        ]
        runs = race(contenders, 2 if quick else 8)
        figures = {
            "step time": report.ratio(runs.seconds["sentinel"], runs.seconds["exact"]),
            "processor time": report.ratio(runs.cpu_seconds["sentinel"], runs.cpu_seconds["exact"]),
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
