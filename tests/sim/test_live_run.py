"""What a manager has recorded gives the same figures as a simulated run would."""

from __future__ import annotations

from typing import Any

import pytest

from virtualflow.core.devices import parse_pools
from virtualflow.dashboard import simulation
from virtualflow.sim import live_run, metrics
from virtualflow.sim.compare import side_by_side

ZERO = 1_700_000_000.0


def job(name: str, submitted: float, started: float, ended: float, demand: int) -> dict[str, Any]:
    times = {"submitted": ZERO + submitted, "started": ZERO + started, "ended": ZERO + ended}
    facts = {"demand": demand, "virtual_nodes": 8, "steps": 10, "step": 10, "priority": 1.0, "resizes": 1}
    return {"id": f"id-{name}", "name": name, "state": "DONE"} | times | facts


def segment(name: str, begin: float, end: float | None, *devices: str) -> dict[str, Any]:
    return {"job": f"id-{name}", "begin": ZERO + begin, "end": end and ZERO + end, "devices": list(devices)}


STATE = {
    "cluster": {"policy": "wfs"},
    "devices": [{"name": "0"}, {"name": "1"}],
    "jobs": [job("first", 0.0, 0.0, 10.0, 2), job("second", 4.0, 5.0, 15.0, 1)],
}
HISTORY = {
    "segments": [
        segment("first", 1.0, 5.0, "0", "1"),
        segment("first", 5.0, 10.0, "0"),
        segment("second", 6.0, None, "1"),
    ]
}


def test_figures_of_a_real_cluster_count_from_the_first_submit() -> None:
    figures = metrics.of(live_run.run_of(STATE, HISTORY))
    assert figures.makespan_seconds == 15.0
    assert figures.average_jct_seconds == 10.5  # 10 and 11
    assert figures.average_queueing_seconds == 0.5
    # Two devices from the launch on, though the first word came a second later; then one each.
    assert figures.utilization == pytest.approx((2 * 5 + 5 + 10) / 30)


def test_real_clusters_are_shown_like_simulated_ones() -> None:
    shown = simulation.of(side_by_side({"real": live_run.run_of(STATE, HISTORY)}), parse_pools("2"), "lab")
    segments = shown["policies"]["real"]["history"]["segments"]
    assert [(each["name"], each["devices"]) for each in segments] == [
        ("job first", ["0", "1"]),
        ("job first", ["0"]),
        ("job second", ["1"]),
    ]
