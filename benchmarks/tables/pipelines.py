"""Figures of models in stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.tables.raw import ratio, results, table


def _found() -> dict[str, Any]:
    found: dict[str, Any] = results("pipelines")["results"]
    return found


def shapes() -> str:
    """The paper's Figure 19."""
    rows = [
        [
            name,
            f"{each['peak'] / 1e6:.1f} MB",
            f"{each['simulated']:.0f}",
            f"{each['seconds']:.2f} s",
            f"`{each['digest'][:12]}`",
        ]
        for name, each in _found()["shapes"].items()
    ]
    return table(["shape", "peak memory of a device", "time of a step, simulated", "on this machine", "digest"], rows)


def digests() -> str:
    return "one digest" if len({each["digest"] for each in _found()["shapes"].values()}) == 1 else "several digests"


def halved() -> str:
    """What half of the devices cost, on the simulated clock."""
    four, two, *_ = _found()["shapes"].values()
    return f"{two['simulated'] / four['simulated']:.2f} times"


def schedules() -> str:
    rows = [
        [str(each["devices"]), each["kind"], f"{each['bubble']:.1%}", str(each["held"])]
        for each in _found()["schedules"]
    ]
    return table(["devices", "schedule", "bubble", "cells whose activations a device holds"], rows)


def races() -> str:
    rows = [[name, ratio(each["ratio"]), ratio(each["processor ratio"])] for name, each in _found()["races"].items()]
    return table(["on two devices", "steps a second", "steps a second of processor time"], rows)


def load() -> str:
    return f"{_found()['load']:.0f}"


FIGURES: dict[str, Callable[[], str]] = {
    "pipelines.shapes": shapes,
    "pipelines.digests": digests,
    "pipelines.halved": halved,
    "pipelines.schedules": schedules,
    "pipelines.races": races,
    "pipelines.load": load,
}
