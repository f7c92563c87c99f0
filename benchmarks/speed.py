"""Throughput against plain PyTorch, Accelerate and Fabric, on one device and on two."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from benchmarks import report
from benchmarks.arena import Contender, Runs, race
from benchmarks.settings import SETTINGS, VIRTUAL_NODES

# What each side must reach, as a part of the baseline's throughput.
GOALS = {
    1: {"fast": dict.fromkeys(SETTINGS, 0.98), "exact": {"resnet": 0.93, "gpt": 0.93, "mlp": 0.85}},
    2: {"fast": dict.fromkeys(SETTINGS, 1.0), "exact": {"resnet": 0.92, "gpt": 0.92, "mlp": 0.8}},
}
BASELINE = {1: "plain PyTorch", 2: "DistributedDataParallel"}


@dataclass(frozen=True, slots=True)
class Line:
    """One contender's result in one setting."""

    setting: str
    devices: int
    contender: str
    step_seconds: float
    throughput: report.Ratio
    cpu_throughput: report.Ratio
    goal: float | None


def run(*, quick: bool, devices: int, only: str | None = None) -> None:
    """Race all contenders in each setting."""
    section, results = report.Section(f"speed-{devices}", quick=quick), {}
    for setting in [only] if only else list(SETTINGS):
        contenders = _contenders(setting, devices)
        runs = race(contenders, 3 if quick else 12, launches=1 if quick else 2)
        lines = [_line(contender, runs) for contender in contenders]
        _show(section, setting, devices, lines, runs)
        times = {"seconds": runs.seconds, "cpu_seconds": runs.cpu_seconds, "disturbance": runs.disturbance}
        results[setting] = {"lines": lines, **times}
    section.save(results)


def _contenders(setting: str, devices: int) -> list[Contender]:
    steps = SETTINGS[setting].segment_steps * devices

    def contender(name: str, kind: str, *, keeps_memory: bool = False) -> Contender:
        return Contender(name, kind, setting, VIRTUAL_NODES, devices, steps, keeps_memory)

    return [
        contender("baseline", "plain"),
        contender("baseline again", "plain"),  # what the measurement itself is worth
        contender("baseline, memory kept", "plain", keeps_memory=True),
        contender("fast", "fast"),
        contender("exact", "exact"),
        contender("accelerate", "accelerate"),
        contender("fabric", "fabric"),
    ]


def _line(contender: Contender, runs: Runs) -> Line:
    name = contender.name
    return Line(
        contender.setting,
        contender.devices,
        name,
        statistics.median(runs.seconds[name]) / contender.steps,
        report.ratio(runs.seconds["baseline"], runs.seconds[name]),
        report.ratio(runs.cpu_seconds["baseline"], runs.cpu_seconds[name]),
        GOALS[contender.devices].get(name, {}).get(contender.setting),
    )


def _show(section: report.Section, setting: str, devices: int, lines: list[Line], runs: Runs) -> None:
    title = (
        f"{SETTINGS[setting].title}; {devices} device(s), {VIRTUAL_NODES} virtual nodes; baseline {BASELINE[devices]}"
    )
    rows = []
    for line in lines:
        rows.append(
            [
                line.contender,
                f"{line.step_seconds * 1e3:.0f} ms",
                line.throughput,
                f"{line.cpu_throughput.median:.3f}",
                "" if line.goal is None else f">= {line.goal:.2f}",
                "" if line.goal is None else ("met" if line.throughput.median >= line.goal else "MISSED"),
            ]
        )
    section.show(
        f"{title}\n{runs.disturbance}",
        ["contender", "step", "throughput (middle half)", "by CPU time", "goal", ""],
        rows,
    )
    ahead = [
        [ours, theirs, report.ratio(runs.seconds[theirs], runs.seconds[ours])]
        for ours in ("fast", "exact")
        for theirs in ("accelerate", "fabric", "baseline, memory kept")
    ]
    section.show("head to head", ["this", "against", "throughput (middle half)"], ahead)
