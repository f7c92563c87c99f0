"""Boxes of the allocation chart."""

from __future__ import annotations

from examples.allocation_chart import boxes

from virtualflow.cluster.job import Job
from virtualflow.sim.result import JobResult, Segment


def test_a_box_for_each_run_of_neighbouring_devices_hatched_where_types_mix() -> None:
    rows = {"V100:0": 0, "V100:1": 1, "V100:2": 2, "P100:0": 3, "P100:1": 4}
    segments = (Segment(0.0, 5.0, ("V100:0", "V100:1")), Segment(5.0, 9.0, ("V100:0", "V100:2", "P100:0")))
    job = JobResult(Job("A", 0.0, 3, 1.0), 0.0, 9.0, 1, 1.0, segments)
    assert list(boxes(job, rows)) == [(0.0, 5.0, 0, 2, False), (5.0, 9.0, 0, 1, True), (5.0, 9.0, 2, 2, True)]
