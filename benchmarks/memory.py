"""Peak memory over the number of virtual nodes, and what memory holds in the first three steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import report
from benchmarks.arena import ROOT
from benchmarks.ledger import CATEGORIES
from benchmarks.settings import SETTINGS

STEPS = 2  # the optimizer's state exists from the end of the first on, so the second has the peak
MEGABYTE = 1e6
BOOKKEEPING = 100_000  # bytes beside the buffers: partial sums, copies of batch norm's statistics


@dataclass(frozen=True, slots=True)
class Point:
    """Peak memory of one device with *virtual_nodes* virtual nodes; None: the model in plain PyTorch, without any."""

    setting: str
    reduction: str | None
    virtual_nodes: int
    live_bytes: int  # of torch's tensors
    resident_bytes: int  # of the process, as the system counts


def run(*, quick: bool) -> None:
    counts = [1, 2, 8] if quick else [1, 2, 4, 8, 16, 32, 64]
    section = report.Section("memory", quick=quick)
    results: dict[str, Any] = {}
    for setting in ("mlp", "resnet"):
        base = point(setting, None, 1)
        points = [point(setting, reduction, count) for reduction in ("fast", "exact") for count in counts]
        _show(section, setting, base, points)
        results[setting] = {"without": base, "with": points}
    _plot_peaks(results)
    breakdowns = {kind: _measured(kind, "gpt", 4, 3, "changes") for kind in ("fast", "exact")}
    _plot_breakdown(breakdowns)
    results["gpt at its peak"] = {kind: _at_peak(found["changes"]) for kind, found in breakdowns.items()}
    rows = [
        [kind, *(f"{held[category] / MEGABYTE:.0f}" for category in CATEGORIES), f"{sum(held.values()) / MEGABYTE:.0f}"]
        for kind, held in results["gpt at its peak"].items()
    ]
    section.show("GPT, 4 virtual nodes: MB at the peak", ["reduction", *CATEGORIES, "all"], rows)
    section.save(results)


def point(setting: str, reduction: str | None, virtual_nodes: int) -> Point:
    """Measure one point, each figure in a fresh process."""
    live, resident = (
        _measured(reduction or "plain", setting, virtual_nodes, STEPS, what)["bytes"] for what in ("peak", "resident")
    )
    return Point(setting, reduction, virtual_nodes, live, resident)


def _measured(kind: str, setting: str, virtual_nodes: int, steps: int, what: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.memory_point", kind, setting, str(virtual_nodes), str(steps), what]
    with tempfile.TemporaryDirectory(prefix="vf-bench-") as home:
        environment = os.environ | {"VF_HOME": home, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def gradient_bytes(setting: str) -> int:
    """One float32 buffer for all gradients of the setting's model."""
    return sum(4 * parameter.numel() for parameter in SETTINGS[setting].model().parameters())


def _show(section: report.Section, setting: str, base: Point, points: Sequence[Point]) -> None:
    gradients = gradient_bytes(setting)
    limits = {"fast": gradients, "exact": 2 * gradients}
    rows = []
    for item in points:
        assert item.reduction is not None
        extra = item.live_bytes - base.live_bytes
        rows.append(
            [
                item.reduction,
                item.virtual_nodes,
                f"{item.live_bytes / MEGABYTE:.1f}",
                f"{extra / MEGABYTE:+.1f}",
                f"<= {limits[item.reduction] / MEGABYTE:.1f}",
                "met" if extra <= limits[item.reduction] + BOOKKEEPING else "MISSED",
                f"{(item.resident_bytes - base.resident_bytes) / MEGABYTE:+.0f}",
            ]
        )
    title = f"{SETTINGS[setting].title}: peak MB; without virtual nodes {base.live_bytes / MEGABYTE:.1f}"
    section.show(title, ["reduction", "virtual nodes", "peak", "more", "goal", "", "more, by the system"], rows)


def _plot_peaks(results: dict[str, Any]) -> None:
    plt = report.pyplot()
    figure, axes = plt.subplots(1, len(results), figsize=(10, 3.8))
    for axis, (setting, found) in zip(axes, results.items(), strict=True):
        base: Point = found["without"]
        axis.axhline(base.live_bytes / MEGABYTE, color="grey", linestyle=":", label="no virtual nodes")
        for reduction in ("fast", "exact"):
            points = [item for item in found["with"] if item.reduction == reduction]
            axis.plot(
                [item.virtual_nodes for item in points],
                [item.live_bytes / MEGABYTE for item in points],
                marker="o",
                label=reduction,
            )
        axis.set(title=SETTINGS[setting].title, xlabel="virtual nodes on the device", ylabel="peak memory, MB")
        axis.set_xscale("log", base=2)
        axis.set_ylim(0, 1.1 * max(item.live_bytes for item in found["with"]) / MEGABYTE)
        axis.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(report.figure_path("memory"), dpi=120)


def _held(changes: Sequence[tuple[int, int, str]]) -> tuple[list[float], dict[str, list[float]]]:
    """Seconds since the first change, and the bytes that each category holds from then on."""
    held = dict.fromkeys(CATEGORIES, 0.0)
    times: list[float] = []
    series: dict[str, list[float]] = {category: [] for category in CATEGORIES}
    for time_ns, size, category in changes:
        held[category] += size
        times.append((time_ns - changes[0][0]) / 1e9)
        for name in CATEGORIES:
            series[name].append(held[name])
    return times, series


def _at_peak(changes: Sequence[tuple[int, int, str]]) -> dict[str, float]:
    _, series = _held(changes)
    totals = [sum(values) for values in zip(*series.values(), strict=True)]
    place = totals.index(max(totals))
    return {category: values[place] for category, values in series.items()}


def _plot_breakdown(breakdowns: dict[str, dict[str, Any]]) -> None:
    plt = report.pyplot()
    figure, axes = plt.subplots(1, len(breakdowns), figsize=(11, 4), sharey=True)
    for axis, (kind, found) in zip(axes, breakdowns.items(), strict=True):
        times, series = _held(found["changes"])
        layers = [[value / MEGABYTE for value in series[category]] for category in CATEGORIES]
        axis.stackplot(times, layers, labels=CATEGORIES, step="post", linewidth=0)
        axis.set(title=f"{kind}: GPT, 4 virtual nodes, the first three steps", xlabel="seconds", ylabel="MB")
    axes[0].legend(loc="upper left", fontsize="small")
    figure.tight_layout()
    figure.savefig(report.figure_path("memory-breakdown"), dpi=120)
