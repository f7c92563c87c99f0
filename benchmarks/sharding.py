"""Sharded state: the peak memory of a device over the number of devices, and the time of a step.

Memory is that of live tensors, to the byte (``benchmarks.ledger``), on the device that has the most. The time is the
median over steps of the ratio of two Trainers that take turns in the same processes: that of the clock, and that of the
processor, for all workers, which other work on the machine changes less.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.arena import ROOT
from benchmarks.settings import SETTINGS

JOB = Path(__file__).with_name("sharding_job.py")
COPIES = 2
MEGABYTE = 1e6
SETTING = "mlp"  # most of its memory is parameters, state and sums
FLOATS = 4  # bytes of a parameter; Adam keeps two such numbers, and sums take twice as much


def run(*, quick: bool) -> None:
    counts = [1, 2, 4] if quick else list(range(1, 9))
    section = report.Section("sharding", quick=quick)
    peaks = {kind: {count: max(_run(count, kind, SETTING, 3)) for count in counts} for kind in ("none", "state")}
    held = _spread_bytes()
    goals = {count: peaks["none"][count] - held * (1 - min(COPIES, count) / count) for count in counts}
    rows = [
        [
            count,
            f"{peaks['none'][count] / MEGABYTE:.0f}",
            f"{peaks['state'][count] / MEGABYTE:.0f}",
            f"{goals[count] / MEGABYTE:.0f}",
            f"{peaks['state'][count] / goals[count]:.2f}",
        ]
        for count in counts
    ]
    title = f"{SETTINGS[SETTING].title}: peak MB of a device, by live tensors; state and sums are {held / MEGABYTE:.0f}"
    section.show(title, ["devices", "not sharded", "sharded", "goal", "sharded / goal"], rows)
    times: dict[str, Any] = {}
    content = {"peaks": peaks, "goals": goals, "state and sums": held, "times": times}
    section.save(content)
    for setting in ("gpt", "mlp"):
        for count in (2, 4):
            found = _run(count, "time", setting, 8 if quick else 16)
            times[f"{setting} on {count}"] = {
                kind: {**sides, "ratio": report.ratio(sides["none"], sides["state"])} for kind, sides in found.items()
            }
            section.save(content)
    rows = [[name, found["seconds"]["ratio"], found["processor"]["ratio"]] for name, found in times.items()]
    title = "steps a second against those of a job that is not sharded (goal: 0.9)"
    section.show(title, ["job", "by the clock", "by the processor's time"], rows)
    _plot(peaks, goals)
    section.save(content)


def _run(devices: int, what: str, setting: str, steps: int) -> Any:
    command = [sys.executable, "-m", "virtualflow.cli.main", "run", "--devices", str(devices), "--patience", "300"]
    with tempfile.TemporaryDirectory(prefix="vf-bench-") as home:
        environment = os.environ | {"VF_HOME": home, "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        arguments = [str(JOB), what, setting, str(steps)]
        done = subprocess.run(command + arguments, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command + arguments)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _spread_bytes() -> int:
    """What is spread over devices: the optimizer's two moments, and the float64 sums."""
    model = SETTINGS[SETTING].model()
    state = 2 if "Adam" in type(SETTINGS[SETTING].optimizer(model)).__name__ else 1
    return sum(parameter.numel() for parameter in model.parameters()) * FLOATS * (state + 2)


def _plot(peaks: dict[str, dict[int, int]], goals: dict[int, float]) -> None:
    plt = report.pyplot()
    figure, axis = plt.subplots(figsize=(5, 3.8))
    for kind, label in (("none", "not sharded"), ("state", "sharded, two copies")):
        axis.plot(list(peaks[kind]), [peak / MEGABYTE for peak in peaks[kind].values()], marker="o", label=label)
    axis.plot(
        list(goals), [goal / MEGABYTE for goal in goals.values()], linestyle=":", label="(state + sums) x 2 / devices"
    )
    axis.set(title=SETTINGS[SETTING].title, xlabel="devices", ylabel="peak memory of a device, MB")
    axis.set_ylim(0)
    axis.legend()
    figure.tight_layout()
    figure.savefig(report.figure_path("sharding"), dpi=120)


if __name__ == "__main__":
    run(quick=True)
