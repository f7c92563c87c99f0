"""Throughput over the number of virtual nodes, the global batch growing with them, and what one of them costs.

The paper saw -4.2% to +31.4%, the gain from fewer updates of large models, and at least 88.4% of the plain throughput
where the batch fits the device anyway.
"""

from __future__ import annotations

from typing import Any

from benchmarks import report
from benchmarks.arena import Contender, race
from benchmarks.settings import SETTINGS


def run(*, quick: bool) -> None:
    counts = [1, 2, 4, 8] if quick else [1, 2, 4, 8, 16]
    section = report.Section("scaling")
    results: dict[str, Any] = {}
    for setting in SETTINGS:
        results[setting] = {}
        for reduction in ("fast", "exact"):
            contenders = [Contender(f"{count}", reduction, setting, count, 1, counts[-1] // count) for count in counts]
            contenders.append(Contender("plain", "plain", setting, 1, 1, counts[-1]))
            runs = race(contenders, 2 if quick else 4)
            results[setting][reduction] = {
                "against one virtual node": {
                    count: report.ratio(runs.seconds["1"], runs.seconds[f"{count}"]) for count in counts
                },
                "one virtual node against plain": report.ratio(runs.seconds["plain"], runs.seconds["1"]),
                "seconds": runs.seconds,
                "disturbance": runs.disturbance,
            }
        _show(section, setting, results[setting])
    _plot(results)
    section.save(results)


def _show(section: report.Section, setting: str, found: dict[str, Any]) -> None:
    rows = [
        [
            reduction,
            *(f"{ratio.median - 1:+.1%}" for ratio in figures["against one virtual node"].values()),
            figures["one virtual node against plain"],
        ]
        for reduction, figures in found.items()
    ]
    counts = next(iter(found.values()))["against one virtual node"]
    columns = ["reduction", *(f"V={count}" for count in counts), "V=1 against plain (paper >= 0.884)"]
    notes = "; ".join(f"{reduction}: {figures['disturbance']}" for reduction, figures in found.items())
    section.show(f"{SETTINGS[setting].title}: throughput against V=1\n{notes}", columns, rows)


def _plot(results: dict[str, Any]) -> None:
    plt = report.pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True)
    for axis, reduction in zip(axes, ("fast", "exact"), strict=True):
        for setting, found in results.items():
            ratios = found[reduction]["against one virtual node"]
            axis.plot(list(ratios), [ratio.median for ratio in ratios.values()], marker="o", label=setting)
        axis.set(title=reduction, xlabel="virtual nodes", ylabel="throughput against one")
        axis.set_xscale("log", base=2)
        axis.legend()
    figure.tight_layout()
    figure.savefig(report.figure_path("scaling"), dpi=120)
