"""What VirtualFlow costs a job that does not need it: one virtual node, at several batch sizes that fit the device.

The paper's figure 18: throughput divided by that of the framework without virtual nodes, at least 88.4%. As in
``scaling``, the baseline is a plain training loop with the allocator settings that VirtualFlow makes for itself.
"""

from __future__ import annotations

from typing import Any

from benchmarks import report
from benchmarks.arena import Contender, race
from benchmarks.scaling import BASELINE
from benchmarks.settings import SETTINGS, VIRTUAL_NODES

TIMES = (1, 2, 4)  # the setting's node size
REDUCTIONS = ("fast", "exact")


def run(*, quick: bool) -> None:
    section = report.Section("overhead", quick=quick)
    results = {setting: measured(setting, TIMES[:2] if quick else TIMES, 2 if quick else 8) for setting in SETTINGS}
    for setting, found in results.items():
        rows = []
        for size, figures in found.items():
            by_cpu = (f"{figures[f'{name}, by CPU time'].median:.3f}" for name in REDUCTIONS)
            rows.append([f"batch {size}", *(figures[name] for name in REDUCTIONS), *by_cpu, figures["disturbance"]])
        title = f"{SETTINGS[setting].title}: one virtual node against {BASELINE} (paper: at least 0.884)"
        section.show(title, ["", *REDUCTIONS, *(f"{name}, by CPU time" for name in REDUCTIONS), "others"], rows)
    section.save(results)


def measured(setting: str, times: tuple[int, ...], rounds: int) -> dict[int, dict[str, Any]]:
    """Ratios of throughput by batch size."""
    found = {}
    for factor in times:
        size = factor * SETTINGS[setting].node_size
        steps = max(1, SETTINGS[setting].segment_steps * VIRTUAL_NODES // factor)  # as many examples in each segment
        contenders = [Contender(name, name, setting, 1, 1, steps, node_size=size) for name in REDUCTIONS]
        contenders.append(Contender(BASELINE, "plain", setting, 1, 1, steps, keeps_memory=True, node_size=size))
        runs = race(contenders, rounds)
        figures: dict[str, Any] = {"disturbance": runs.disturbance, "seconds": runs.seconds}
        for name in REDUCTIONS:
            figures[name] = report.ratio(runs.seconds[BASELINE], runs.seconds[name])
            figures[f"{name}, by CPU time"] = report.ratio(runs.cpu_seconds[BASELINE], runs.cpu_seconds[name])
        found[size] = figures
    return found
