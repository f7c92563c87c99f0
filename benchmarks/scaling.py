"""Throughput over the number of virtual nodes, the global batch growing with them, against plain PyTorch.

The paper's figures 17 (bottom) and 18 divide by the throughput of the framework without virtual nodes, at the same
node size: -4.2% to +31.4%, the gain from fewer updates of large models, and at least 88.4% with one virtual node. The
baseline here is a plain training loop with the allocator settings that VirtualFlow makes for itself, so that memory
which is kept counts on neither side.
"""

from __future__ import annotations

from typing import Any

from benchmarks import report
from benchmarks.arena import Contender, Runs, race
from benchmarks.settings import SETTINGS

BASELINE = "plain PyTorch, memory kept"


def run(*, quick: bool) -> None:
    counts = [1, 2, 4, 8] if quick else [1, 2, 4, 8, 16]
    section = report.Section("scaling", quick=quick)
    results: dict[str, Any] = {}
    for setting in SETTINGS:
        results[setting] = {}
        for reduction in ("fast", "exact"):
            contenders = [Contender(f"{count}", reduction, setting, count, 1, counts[-1] // count) for count in counts]
            contenders.append(Contender(BASELINE, "plain", setting, 1, 1, counts[-1], keeps_memory=True))
            runs = race(contenders, 2 if quick else 4)
            results[setting][reduction] = _against_plain(runs, counts)
        _show(section, setting, results[setting])
    _plot(results)
    section.save(results)


def _against_plain(runs: Runs, counts: list[int]) -> dict[str, Any]:
    """Throughput by the number of virtual nodes, by wall time and by CPU time, with the times themselves."""
    by_wall, by_cpu = (
        {count: report.ratio(times[BASELINE], times[f"{count}"]) for count in counts}
        for times in (runs.seconds, runs.cpu_seconds)
    )
    return {
        "against plain": by_wall,
        "against plain, by CPU time": by_cpu,
        "seconds": runs.seconds,
        "cpu_seconds": runs.cpu_seconds,
        "disturbance": runs.disturbance,
    }


def _show(section: report.Section, setting: str, found: dict[str, Any]) -> None:
    rows = [
        [f"{reduction}{name.removeprefix('against plain')}", *figures[name].values()]
        for reduction, figures in found.items()
        for name in ("against plain", "against plain, by CPU time")
    ]
    counts = next(iter(found.values()))["against plain"]
    notes = "; ".join(f"{reduction}: {figures['disturbance']}" for reduction, figures in found.items())
    title = f"{SETTINGS[setting].title}: throughput against {BASELINE} (paper: V=1 >= 0.884)\n{notes}"
    section.show(title, ["reduction", *(f"V={count}" for count in counts)], rows)


def _plot(results: dict[str, Any]) -> None:
    plt = report.pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True)
    for axis, reduction in zip(axes, ("fast", "exact"), strict=True):
        for setting, found in results.items():
            ratios = found[reduction]["against plain"]
            axis.plot(list(ratios), [ratio.median for ratio in ratios.values()], marker="o", label=setting)
        axis.set(title=reduction, xlabel="virtual nodes", ylabel="throughput against plain PyTorch")
        axis.set_xscale("log", base=2)
        axis.legend()
    figure.tight_layout()
    figure.savefig(report.figure_path("scaling"), dpi=120)
