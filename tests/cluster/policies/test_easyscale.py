"""EasyScale: its rules one by one."""

from __future__ import annotations

from virtualflow.cluster.job import Job
from virtualflow.cluster.policies import registry
from virtualflow.cluster.throughput.model import Profiled, Throughput
from virtualflow.cluster.throughput.table import Table
from virtualflow.core.devices import parse_pools
from virtualflow.sim import costs
from virtualflow.sim.engine import simulate
from virtualflow.sim.result import JobResult

ALONE = {
    "v100": {("a", count): 4.0 * count for count in (1, 2, 4)} | {("b", count): 2.0 * count for count in (1, 2, 4)},
    "k80": {("a", count): 1.0 * count for count in (1, 2, 4)} | {("b", count): 1.0 * count for count in (1, 2, 4)},
}


def run(jobs: list[Job], devices: str, speeds: Throughput | None = None) -> dict[str, JobResult]:
    table = speeds or Table(ALONE, {})
    result = simulate(jobs, parse_pools(devices), registry.make("easyscale"), table, costs.NONE)
    return {each.job.id: each for each in result.jobs}


def sizes(result: JobResult) -> list[tuple[float, int]]:
    return [(segment.start_seconds, len(segment.devices)) for segment in result.segments]


def test_a_job_begins_with_its_minimum_and_doubles_each_minute() -> None:
    assert sizes(run([Job("x", 0.0, 4, 8000.0, "a")], "V100:4")["x"])[:3] == [(0.0, 1), (60.0, 2), (120.0, 4)]
    assert sizes(run([Job("x", 0.0, 4, 8000.0, "a", min=3)], "V100:4")["x"])[:2] == [(0.0, 3), (60.0, 4)]


def test_a_job_begins_on_the_slowest_type_that_has_room() -> None:
    result = run([Job("x", 0.0, 1, 40.0, "a"), Job("y", 0.0, 1, 40.0, "a")], "V100:1,K80:1")
    assert result["x"].segments[0].devices == ("K80:0",)
    assert result["y"].segments[0].devices == ("V100:0",)


def test_the_largest_gain_for_a_device_is_accepted_first() -> None:
    """Both have two devices and there are two more: the second pair doubles x's speed, and gives y a tenth."""
    speeds = Table(
        {"v100": {("a", n): float(n) for n in (1, 2, 4)} | {("c", 1): 1.0, ("c", 2): 1.9, ("c", 4): 2.0}}, {}
    )
    jobs = [Job("y", 0.0, 4, 3000.0, "c", min=2), Job("x", 0.0, 4, 3000.0, "a", min=2)]
    result = run(jobs, "V100:6", speeds)
    assert sizes(result["x"])[1] == (60.0, 4)
    assert [size for seconds, size in sizes(result["y"]) if seconds < result["x"].end_seconds] == [2]


def test_nobody_shrinks_for_another() -> None:
    jobs = [Job("x", 0.0, 4, 4000.0, "a"), Job("y", 300.0, 1, 10.0, "a", priority=9.0)]
    result = run(jobs, "V100:4")
    assert result["y"].start_seconds >= result["x"].end_seconds


def test_a_type_that_would_be_wasted_is_not_proposed() -> None:
    """Without measured mixtures a job on several types runs as on the best of them: the others would do nothing."""
    result = run([Job("x", 0.0, 2, 4000.0, "a", min=1)], "K80:1,V100:1")
    assert {len(segment.devices) for segment in result["x"].segments} <= {1, 2}
    wide = run([Job("x", 0.0, 8, 400.0, "a", min=4)], "V100:4,K80:4")["x"]
    assert all(len({device.split(":")[0] for device in s.devices}) == 1 for s in wide.segments[:1])


def test_virtual_nodes_spread_over_types_by_the_solver() -> None:
    job = Job("x", 0.0, 8, 2000.0, "resnet50", 64, 16)
    result = run([job], "V100:2,P100:4", Profiled())["x"]
    kinds = [{device.split(":")[0] for device in segment.devices} for segment in result.segments]
    assert {"V100", "P100"} in kinds
    assert not registry.make("easyscale").changes_batch
