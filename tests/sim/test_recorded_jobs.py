"""What another policy would have done to the jobs of a manager, from its records. Real records, played coordinators."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.manager.worlds import Starts, World, answering, job, launched, starts, world
from virtualflow.cli.main import app
from virtualflow.cluster import recorded
from virtualflow.cluster.recorded import RecordedCluster
from virtualflow.core.devices import parse_pools
from virtualflow.core.job_state import JobState
from virtualflow.core.step_times import TimedSteps, TypeShare
from virtualflow.errors import ManagerError, TraceError, VirtualFlowError
from virtualflow.job.status import JobStatus
from virtualflow.manager.api.views import ClusterSource
from virtualflow.manager.manager import Manager
from virtualflow.sim import costs
from virtualflow.sim.compare import Setting
from virtualflow.sim.recorded_jobs import HAPPENED, Past
from virtualflow.testing import FakeClock

__all__ = ["starts", "world"]
ZERO = 1_700_000_000.0


def past_of(manager: Manager, since: float = ZERO, spent: costs.Costs = costs.NONE) -> Past:
    """As a client gets it: over JSON."""
    plain = json.loads(json.dumps(ClusterSource(manager).recorded(since)))
    return Past.of(recorded.from_json(plain), spent)


def setting(past: Past) -> Setting:
    return Setting(past.recorded.pools, past.throughput, past.costs)


@pytest.fixture
def manager(world: World, starts: Starts) -> Manager:
    """A job ran on both devices for 100 s; another one, which came after 10 s, had to wait, and ran for 50 s."""
    clock = FakeClock(ZERO)
    manager = world.manager("V100:2", "fifo", clock)
    run(manager, starts, clock, manager.submit(job(name="long", demand=2, virtual_nodes=2)), 10.0)
    second = manager.submit(job(name="short", demand=2, virtual_nodes=2))
    clock.now = ZERO + 100.0
    end(manager, starts)
    run(manager, starts, clock, second, 50.0)
    end(manager, starts)
    return manager


def run(manager: Manager, starts: Starts, clock: FakeClock, job_id: str, seconds: float) -> None:
    manager.tick()
    with launched(manager, starts):
        folder = manager.fleet.folder(job_id)
        folder.write_state(JobStatus(JobState.RUNNING, virtual_nodes=2))
        manager.tick()
    clock.now += seconds


def end(manager: Manager, starts: Starts) -> None:
    """The job that runs is done, with steps that took a second on a device and half of one on two."""
    (record,) = manager.records.running()
    one, two = ((TypeShare("V100", count, 2 // count),) for count in (1, 2))
    manager.fleet.folder(record.id).write_state(JobStatus(JobState.DONE))
    starts.processes[-1].end(0)
    starts.made.clear()
    manager.tick()
    steps = (TimedSteps(one, 100, 1.0, 0.001), TimedSteps(two, 100, 0.5, 0.001))
    manager.records.update(record.id, measured_steps=steps)


def test_what_happened_stands_beside_what_another_policy_would_have_done(manager: Manager) -> None:
    past = past_of(manager)
    found = past.compare(["wfs"], setting(past)).policies
    assert list(found) == [HAPPENED, "fifo, as now", "wfs"]
    real, again, shared = (found[name].intervals["average_jct_seconds"].mean for name in found)
    assert real == pytest.approx((100 + 140) / 2)
    assert again == pytest.approx(real, rel=0.01)  # no start costs anything here
    # From 10 s on each has one device, until the short one is done after 100 s more; then the long one has both.
    assert shared == pytest.approx((150 + 100) / 2, rel=0.01)


def test_a_cluster_that_had_more_devices_than_now_was_not_more_than_full(manager: Manager) -> None:
    past = past_of(manager)
    fewer = replace(past, recorded=replace(past.recorded, pools=tuple(parse_pools("V100:1"))))
    assert fewer.happened().accounts.total == past.happened().accounts.total == 2 * 150.0


def test_starts_are_no_work(manager: Manager) -> None:
    spent = costs.Costs("some", boot=20.0)
    past = past_of(manager, spent=spent)
    assert [round(each.steps) for each in past.trace.jobs] == [80, 30]
    again = past.compare([], setting(past)).policies["fifo, as now"]
    assert again.intervals["average_jct_seconds"].mean == pytest.approx(120, rel=0.01)


def simulate(*words: str) -> str:
    result = CliRunner().invoke(app, ["simulate", *words], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


@pytest.fixture
def answers(manager: Manager) -> Iterator[None]:
    """The manager answers over HTTP."""
    with answering(manager):
        yield


def test_one_command_asks_the_manager_and_compares(answers: None, tmp_path: Path) -> None:
    words = ("--from-cluster", "--policy", "wfs", "--since", "10000d", "--costs", "none")
    found = json.loads(simulate(*words, "--json", "-o", str(tmp_path / "report")))["policies"]
    assert list(found) == [HAPPENED, "fifo, as now", "wfs"]
    assert found["wfs"]["average_jct_seconds"] == pytest.approx(125, rel=0.01)
    assert HAPPENED in (tmp_path / "report" / "index.html").read_text()
    more = json.loads(simulate(*words, "--json", "--devices", "V100:4"))["policies"]
    assert more["fifo, as now"]["average_queueing_seconds"] == 0  # on twice the devices, nobody waits
    assert all(word in simulate(*words) for word in (HAPPENED, "fifo, as now", "wfs"))


def test_what_makes_no_sense_with_a_clusters_jobs_is_refused(answers: None) -> None:
    runner = CliRunner()
    for words, reason in (
        (["trace.json", "--from-cluster"], "TRACE does not go with --from-cluster"),
        (["--from-cluster", "--seeds", "3"], "--seeds does not go with --from-cluster"),
        (["--from-cluster", "--since", "soon"], "--since soon: expected a time"),
        (["--from-cluster"], "no job of the manager's had devices in that time"),
        (["--since", "7d"], "a simulation needs a TRACE and --devices"),
    ):
        result = runner.invoke(app, ["simulate", *words])
        assert isinstance(result.exception, VirtualFlowError), result.output
        assert reason in str(result.exception)


def test_only_jobs_of_the_time_asked_for_count(manager: Manager) -> None:
    assert [each.name for each in past_of(manager, ZERO + 120.0).jobs] == ["short"]
    with pytest.raises(TraceError, match="no job of the manager's had devices in that time"):
        past_of(manager, ZERO + 1000.0)


def test_jobs_that_run_count_up_to_now_and_those_that_wait_do_not(world: World, starts: Starts) -> None:
    clock = FakeClock(ZERO)
    manager = world.manager("V100:2", "fifo", clock)
    run(manager, starts, clock, manager.submit(job(name="runs", demand=2)), 40.0)
    manager.submit(job(name="waits", demand=2))
    past = past_of(manager)
    assert [each.name for each in past.jobs] == ["runs"]
    (result,) = past.happened().jobs
    assert result.jct_seconds == 40.0


def test_records_of_another_version_are_refused() -> None:
    with pytest.raises(ManagerError, match="do not fit this version"):
        recorded.from_json({"policy": "wfs"})


def test_the_policys_own_options_are_recorded(world: World, tmp_path: Path) -> None:
    plain = ClusterSource(world.manager("4")).recorded(0.0)
    cluster: RecordedCluster = recorded.from_json(plain)
    assert (cluster.policy, cluster.options.round, cluster.jobs) == ("wfs", "any", ())
