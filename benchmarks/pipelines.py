"""Models in stages: the paper's Figure 19, what schedules wait, and torch.distributed.pipelining beside ours.

Memory is that of live tensors, to the byte (``benchmarks.ledger``), on the device that has the most. Bubbles are those
of the simulated clock, on which a backward takes twice as long as its forward. Torch's pipelining and ours take turns
in the same processes, step by step.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.arena import ROOT
from virtualflow.core.cell_schedule import bubbles, peak_activations, timeline
from virtualflow.core.cells import Cells

JOB = Path(__file__).with_name("pipelines_job.py")
MEGABYTE = 1e6
NODES = 8
# Stages down, virtual nodes across: the paper's two pipelines of two, and half of those devices.
SHAPES: dict[str, list[list[int]]] = {
    "4 devices: 2 pipelines of 2": [[0] * 4 + [2] * 4, [1] * 4 + [3] * 4],
    "2 devices: 1 pipeline of 2": [[0] * 8, [1] * 8],
    "1 device": [[0] * 8, [0] * 8],
}
RACES = {  # stages, schedule: on two devices
    "GPipe, 2 stages": (2, "gpipe"),
    "1F1B, 2 stages": (2, "1f1b"),
    "interleaved 1F1B, 4 stages": (4, "1f1b"),
}


def run(*, quick: bool) -> None:
    section = report.Section("pipelines", quick=quick)
    found: dict[str, Any] = {"shapes": _shapes(4 if quick else 12), "schedules": schedules()}
    _show_shapes(section, found["shapes"])
    _show_schedules(section, found["schedules"])
    found["races"] = {name: race(stages, kind, 6 if quick else 26) for name, (stages, kind) in RACES.items()}
    rows = [[name, each["ratio"], each["processor ratio"]] for name, each in found["races"].items()]
    title = "steps a second against torch.distributed.pipelining (goal: 0.95), and the same for processor time"
    section.show(title, ["schedule", "ratio", "of processor time"], rows)
    section.save(found | {"load": os.getloadavg()[0]})


def _shapes(steps: int) -> dict[str, dict[str, Any]]:
    found = {}
    for name, rows in SHAPES.items():
        memory = _run("memory", 2, 4, "1f1b", rows)
        timed = _run("time", 2, steps, "1f1b", rows)
        alone = _run("time", 2, 4, "1f1b", rows)
        times = timeline(_cells(rows), "1f1b")
        found[name] = {
            "peak": max(memory["peaks"]),
            "seconds": timed["seconds"],
            "digest": alone["digest"],
            "simulated": max(timed.end for line in times.values() for timed in line),
        }
    return found


def schedules() -> list[dict[str, Any]]:
    """What each schedule waits on the same cells, and of how many it holds activations."""
    found = []
    for depth in (2, 4, 8):
        grids = {"": [[stage] * 16 for stage in range(depth)]}
        grids[", interleaved"] = [[stage % depth] * 16 for stage in range(2 * depth)]
        for suffix, rows in grids.items():
            for kind in ("gpipe", "1f1b"):
                times = timeline(_cells(rows), kind)
                held = [peak_activations(timed.run for timed in line) for line in times.values()]
                waits = max(bubbles(times).values())
                found.append({"devices": depth, "kind": kind + suffix, "bubble": waits, "held": max(held)})
    return found


def race(stages: int, kind: str, steps: int) -> dict[str, Any]:
    """Ours against torch's on two devices."""
    rows = [[stage % 2] * NODES for stage in range(stages)]
    taken = _run("torch", stages, steps, kind, rows)
    seconds, processor = taken["seconds"], taken["processor"]
    ratio = report.ratio(seconds["torch"], seconds["ours"])
    return {**taken, "ratio": ratio, "processor ratio": report.ratio(processor["torch"], processor["ours"])}


def _cells(rows: Sequence[Sequence[int]]) -> Cells:
    return Cells(tuple(tuple(str(row[node]) for row in rows) for node in range(len(rows[0]))))


def _show_shapes(section: report.Section, found: Mapping[str, Mapping[str, Any]]) -> None:
    rows = [
        [name, f"{each['peak'] / MEGABYTE:.1f}", f"{each['seconds']:.3f}", f"{each['simulated']:.0f}", each["digest"]]
        for name, each in found.items()
    ]
    section.show("Figure 19", ["shape", "peak MB of a device", "s a step, here", "on the clock", "digest"], rows)


def _show_schedules(section: report.Section, found: Sequence[Mapping[str, Any]]) -> None:
    rows = [[each["devices"], each["kind"], f"{each['bubble']:.1%}", each["held"]] for each in found]
    section.show("16 virtual nodes", ["devices", "schedule", "waits", "cells whose activations it holds"], rows)


def _run(what: str, stages: int, steps: int, kind: str, rows: Sequence[Sequence[int]]) -> Any:
    mapping = "/".join(",".join(map(str, row)) for row in rows)
    devices = str(1 + max(map(max, rows)))
    command = [sys.executable, "-m", "virtualflow.cli.main", "run", "--devices", devices, "--mapping", mapping]
    with tempfile.TemporaryDirectory(prefix="vf-bench-") as home:
        environment = os.environ | {"VF_HOME": home, "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        arguments = ["--patience", "300", str(JOB), what, str(stages), str(steps), kind]
        done = subprocess.run(command + arguments, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command + arguments)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    run(quick=True)
