"""The forecasts of grids against steps on them: on CPU devices, with this machine's profile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.arena import ROOT

JOB = Path(__file__).with_name("pipelines_job.py")
STAGES, NODES, NODE_SIZE = 4, 8, 4  # of that job, whose stages have a layer each
HALVES = [0] * 4 + [1] * 4
GRIDS: dict[str, tuple[str, list[list[int]]]] = {  # schedule; for each stage a device for each virtual node
    "1 device": ("1f1b", [[0] * 8] * 4),
    "pipeline of 2, 1F1B": ("1f1b", [[0] * 8] * 2 + [[1] * 8] * 2),
    "pipeline of 2, GPipe": ("gpipe", [[0] * 8] * 2 + [[1] * 8] * 2),
    "pipeline of 2, one stage and three": ("1f1b", [[0] * 8] + [[1] * 8] * 3),
    "interleaved on 2": ("1f1b", [[0] * 8, [1] * 8] * 2),
    "data parallel on 2": ("1f1b", [HALVES] * 4),
    "last stage on both": ("1f1b", [[0] * 8, [0] * 8, [1] * 8, HALVES]),
}


def compared(*, quick: bool) -> dict[str, Any]:
    """Of each grid the forecast, and the median step of several runs, which take turns over all grids.

    The ratio is that of the fastest run: on a machine that others use too, it is the one that was least disturbed.
    """
    steps, rounds = (4, 1) if quick else (12, 2)
    with tempfile.TemporaryDirectory(prefix="vf-bench-") as folder:
        _vf(["profile", "--devices", "2", "--largest", str(NODE_SIZE), "-o", folder, *_job(2, "1f1b")])
        forecasts = {name: _forecast(folder, *grid) for name, grid in GRIDS.items()}
    real = [{name: _measured(steps, *grid) for name, grid in GRIDS.items()} for _ in range(rounds)]
    found = {
        name: {"forecast": forecasts[name], "medians": (medians := [taken[name] for taken in real])}
        | {"ratio": min(medians) / forecasts[name]}
        for name in GRIDS
    }
    return {"grids": found, "load": os.getloadavg()[0]}


def _forecast(folder: str, kind: str, rows: Sequence[Sequence[int]]) -> float:
    job = ["--batch-size", str(NODES * NODE_SIZE), "--virtual-nodes", str(NODES), "--stages", str(STAGES)]
    how = ["--copies", "1", "--pipeline", kind, "--mapping", _mapping(rows), "--profiles", folder, "--json"]
    seconds: float = json.loads(_vf(["explain", "--devices", _devices(rows), *job, *how]))["step_time_seconds"]
    return seconds


def _measured(steps: int, kind: str, rows: Sequence[Sequence[int]]) -> float:
    words = ["run", "--devices", _devices(rows), "--mapping", _mapping(rows), "--patience", "300", *_job(steps, kind)]
    seconds: float = json.loads(_vf(words).splitlines()[-1])["seconds"]
    return seconds


def _job(steps: int, kind: str) -> list[str]:
    return [str(JOB), "time", str(STAGES), str(steps), kind]


def _devices(rows: Sequence[Sequence[int]]) -> str:
    return str(1 + max(map(max, rows)))


def _mapping(rows: Sequence[Sequence[int]]) -> str:
    return "/".join(",".join(map(str, row)) for row in rows)


def _vf(words: Sequence[str]) -> str:
    with tempfile.TemporaryDirectory(prefix="vf-bench-") as home:
        environment = os.environ | {"VF_HOME": home, "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        command = [sys.executable, "-m", "virtualflow.cli.main", *words]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout
