"""Fits the model of goodput to what Pollux' and Sia's authors measured, and writes its numbers.

``python -m benchmarks.goodput`` reads their measurements from the folder that PUBLISHED_TRACES names: Pollux'
``simulator/traces`` and, for other types than T4, Sia's ``sia-simulator/traces``.
"""

from __future__ import annotations

import csv
import json
import math
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from benchmarks import published
from virtualflow.cluster.throughput.goodput import StepSeconds
from virtualflow.sim.pollux_applications import FILE

EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
MOST_LOCAL = {"yolov3": 8}  # examples of a T4 that Pollux lets it have
MOST_DEVICES = {"ncf": 1}  # that Pollux lets it have; of the others, as many as were measured
SOURCES = {"T4": ("simulator", ""), "RTX2080Ti": ("sia-simulator", "-rtx"), "A100": ("sia-simulator", "-dgx-ext")}
START = np.log([0.1, 0.01] * 3)
Rows = list[dict[str, float]]


def main() -> None:
    found = {}
    for name, epochs in EPOCHS.items():
        types = {kind: fitted(name, kind) for kind in SOURCES}
        for kind, (_, error) in types.items():
            print(f"{name} on {kind}: step times within {error:.1%} (median)")
        found[name] = {
            "most_devices": MOST_DEVICES.get(name, 64),
            "steps": steps_to_the_end(name, epochs),
            "types": {kind: asdict(times) for kind, (times, _) in types.items()},
        }
    content = {"source": "fitted to the measurements of Pollux (OSDI '21) and Sia (SOSP '23), Apache-2.0"}
    FILE.write_text(json.dumps(content | {"applications": found}, indent=1) + "\n")


def fitted(name: str, kind: str) -> tuple[StepSeconds, float]:
    """The model with the least squares of the logarithms, and the median error of its step times."""
    folder, suffix = SOURCES[kind]
    rows = _measured(f"{folder}/traces/{name}", suffix)
    if kind == "T4" and name in MOST_LOCAL:
        rows = [row for row in rows if row["local_bsz"] <= MOST_LOCAL[name]]
    nodes, devices, local, step, sync = (np.array([row[key] for row in rows]) for key in _COLUMNS)
    compute = np.maximum(step - sync, 1e-6)

    def model(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        base, each, far, farther, near, nearer = np.exp(values[:6])
        gamma = 1 + 9 / (1 + math.exp(-values[6]))
        own = base + each * local
        more = np.maximum(devices - 2, 0)
        network = np.where(nodes > 1, far + farther * more, np.where(devices > 1, near + nearer * more, 1e-8))
        return own, (own**gamma + network**gamma) ** (1 / gamma)

    def loss(values: np.ndarray) -> float:
        own, whole = model(values)
        return float(np.mean(np.log(own / compute) ** 2) + np.mean(np.log(whole / step) ** 2)) + 1e-4 * float(
            values[6] ** 2
        )

    best = minimize(loss, [*START, -2.0], method="L-BFGS-B", bounds=[(-18.0, 5.0)] * 6 + [(-8.0, 8.0)]).x
    error = float(np.median(np.abs(model(best)[1] / step - 1)))
    gamma = 1 + 9 / (1 + math.exp(-best[6]))
    values = [float(f"{value:.5g}") for value in (*np.exp(best[:6]), gamma)]
    return StepSeconds(*values, int(local.min()), int(local.max())), error


_COLUMNS = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")


def _measured(folder: str, suffix: str) -> Rows:
    """Measurements by placement, and those of one device on each machine."""
    rows: Rows = []
    for kind in ("placements", "scalability"):
        for row in _csv(f"{folder}/{kind}{suffix}.csv"):
            if "placement" in row:
                digits = [int(digit) for digit in row.pop("placement")]
                row["num_nodes"], row["num_replicas"] = str(len(digits)), str(sum(digits))
            rows.append({key: float(row[key]) for key in _COLUMNS})
    return rows


def steps_to_the_end(name: str, epochs: int) -> list[tuple[int, int]]:
    """By batch size: steps until a training has made the progress of all its epochs, as its gradient noise says."""
    paths = sorted(_path(f"simulator/traces/{name}").glob("validation-*.csv"))
    runs = {int(path.stem.partition("-")[2]): _csv_of(path) for path in paths}
    smallest = min(runs)
    progress = [min(float(run[epoch]["progress"]) for run in runs.values()) for epoch in range(epochs)]
    steps: dict[int, float] = defaultdict(float)
    for batch, run in runs.items():
        scale = batch / smallest
        for epoch in range(epochs):
            more = progress[epoch] - (progress[epoch - 1] if epoch else 0.0)
            sqr, var = float(run[epoch]["grad_sqr"]), float(run[epoch]["grad_var"])
            steps[batch] += more * (var / scale + sqr) / (var + sqr)
    return [(batch, round(steps[batch])) for batch in sorted(steps)]


def _path(name: str) -> Path:
    path = published.find(name)
    if path is None:
        raise SystemExit(f"{name} is needed")
    return path


def _csv(name: str) -> list[dict[str, str]]:
    return _csv_of(_path(name))


def _csv_of(path: Path) -> list[dict[str, str]]:
    with path.open() as lines:
        return list(csv.DictReader(lines))


if __name__ == "__main__":
    main()
