"""Pollux' six applications as its authors measured them: ``pollux.json``, made by benchmarks/goodput.py."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from virtualflow.cluster.throughput.goodput import Application, Goodput, StepSeconds
from virtualflow.cluster.throughput.model import Throughput

FILE = Path(__file__).with_name("pollux.json")
PREFIX = "pollux/"  # of the workloads' names


def beside(others: Throughput) -> Goodput:
    """Speeds of these applications; of other workloads, *others*."""
    return Goodput(applications(), others)


@cache
def applications() -> Mapping[str, Application]:
    """By workload."""
    content = json.loads(FILE.read_text())["applications"]
    return {
        PREFIX + name: Application(
            entry["most_devices"],
            tuple((batch, steps) for batch, steps in entry["steps"]),
            {kind: StepSeconds(**seconds) for kind, seconds in entry["types"].items()},
        )
        for name, entry in content.items()
    }
