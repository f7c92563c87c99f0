"""The paper's 20-job experiment: its static runs, and what elasticity gains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from virtualflow.cluster.policies.base import Options
from virtualflow.cluster.throughput.workloads import paper_speeds
from virtualflow.core.devices import parse_pools
from virtualflow.sim import costs, importers, metrics
from virtualflow.sim.compare import Setting, run

TRACES = Path(__file__).parents[2] / "benchmarks" / "traces"


def setting(rounding: str = "any") -> Setting:
    return Setting(parse_pools("V100:8"), paper_speeds(even=True), costs.PAPER, Options(round=rounding))


def test_each_static_run_is_met_within_15_percent() -> None:
    measured = json.loads((TRACES / "static-runs.json").read_text())["paper-20-jobs"]
    result = run(importers.read(TRACES / "paper-20-jobs.json"), "priority", setting())
    assert len(result.jobs) == len(measured) == 20
    for job in result.jobs:
        assert job.end_seconds - job.start_seconds == pytest.approx(measured[job.job.id], rel=0.15)


@pytest.mark.parametrize("rounding", ["pow2", "any"])
def test_elasticity_gains_what_the_paper_says(rounding: str) -> None:
    trace = importers.read(TRACES / "paper-20-jobs.json")
    static = metrics.of(run(trace, "priority", setting(rounding)))
    elastic = metrics.of(run(trace, "wfs", setting(rounding)))
    assert elastic.makespan_seconds / static.makespan_seconds - 1 == pytest.approx(-0.455, abs=0.05)
    assert elastic.median_jct_seconds / static.median_jct_seconds - 1 == pytest.approx(-0.476, abs=0.10)
    assert elastic.median_queueing_seconds <= 0.01 * static.median_queueing_seconds
    assert static.utilization == pytest.approx(0.711, abs=0.02)
    assert elastic.utilization > 0.9
