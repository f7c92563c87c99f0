"""Gavel's policies: its own figures, its rules, and mixed allocations."""

from __future__ import annotations

from pathlib import Path

import pytest

from virtualflow.cluster.job import Job
from virtualflow.cluster.messages import JobArrived, ReallocateJob, StartJob, WakeAt, Woken
from virtualflow.cluster.policies import registry
from virtualflow.cluster.policies.base import Decision, Grant, Options, Policy
from virtualflow.cluster.policies.gavel import Gavel
from virtualflow.cluster.scheduler import Scheduler
from virtualflow.cluster.snapshot import Snapshot
from virtualflow.cluster.throughput.free_sizes import FreeSizes
from virtualflow.cluster.throughput.table import GAVEL_ROUND_SECONDS, Table
from virtualflow.core.devices import parse_pools
from virtualflow.errors import ConfigError, PolicyError
from virtualflow.sim import costs, gavel_table, importers, metrics
from virtualflow.sim.engine import simulate
from virtualflow.sim.result import Run

TRACES = Path(__file__).parents[3] / "benchmarks" / "traces"
CLUSTER = parse_pools("V100:4,P100:8,K80:16")
FAMILY = ("las", "las-agnostic", "water-filling", "ftf", "makespan")


def on_gavels_trace(name: str, compat: str | None) -> Run:
    whole = GAVEL_ROUND_SECONDS if compat else None
    table = gavel_table.read(TRACES / "gavel-speeds.json", whole_steps_seconds=whole)
    jobs = importers.read(TRACES / "gavel-8-an-hour.json").jobs
    return simulate(jobs, CLUSTER, registry.make(name, Options(compat=compat)), table, costs.NONE)


def test_average_jct_is_what_gavel_itself_gives() -> None:
    assert metrics.of(on_gavels_trace("las", "gavel")).average_jct_seconds == pytest.approx(3836.8, rel=0.05)


def test_rounds_are_as_long_as_is_asked_for() -> None:
    policy = registry.make("las", Options(round_seconds=30.0))
    brain = Scheduler(parse_pools("V100:2"), policy, FreeSizes())
    assert brain.handle(JobArrived(10.0, Job("a", 10.0, 2, 5.0, "bert-base", 32))) == [WakeAt(30.0)]


def test_a_round_without_length_is_refused() -> None:
    with pytest.raises(ConfigError, match="--round-seconds 0: a round takes some time"):
        registry.make("las", Options(round_seconds=0.0))


def test_without_gavels_gate_jobs_end_sooner() -> None:
    """Gavel's own simulator, with the gate and without: it raises the average JCT by 29 to 43%."""
    gated, free = (metrics.of(on_gavels_trace("las", compat)).average_jct_seconds for compat in ("gavel", None))
    assert 1.25 < gated / free < 1.45


@pytest.mark.parametrize(("rate", "least"), [(4, 0.25), (8, 0.2), (12, 0.0)])
def test_mixed_allocations_shorten_the_papers_traces(rate: int, least: float) -> None:
    jobs = importers.read(TRACES / f"paper-mixed-{rate}.json").jobs
    speeds = FreeSizes()
    plain, mixed = (
        metrics.of(simulate(jobs, CLUSTER, registry.make(name), speeds, costs.NONE)).average_jct_seconds
        for name in ("las", "las-mixed")
    )
    assert 1 - mixed / plain > least


def test_five_p100s_beside_sixteen_k80s_gain_what_the_paper_says() -> None:
    speeds, job = FreeSizes(), Job("a", 0.0, 16, 1000, "transformer", 2048, 32)
    alone = speeds.speed(job, parse_pools("K80:16")).steps_per_second
    both = speeds.speed(job, parse_pools("P100:5,K80:16")).steps_per_second
    assert both / alone - 1 == pytest.approx(0.337, abs=0.0005)


TABLE = Table(
    {
        "v100": {("a", 1): 4.0, ("a", 2): 7.0, ("a", 4): 12.0, ("b", 1): 2.0},
        "k80": {("a", 1): 1.0, ("a", 2): 1.5, ("a", 4): 2.0, ("b", 1): 1.5},
    },
    {"v100": {(("a", 1), ("b", 1)): 3.0, (("b", 1), ("a", 1)): 1.0}},
)


def run(name: str, jobs: list[Job], devices: str = "V100:1,K80:1", compat: str | None = None) -> tuple[Gavel, Run]:
    policy = registry.make(name, Options(compat=compat))
    assert isinstance(policy, Gavel)
    return policy, simulate(jobs, parse_pools(devices), policy, TABLE, costs.NONE)


def test_for_the_makespan_the_job_that_gains_most_from_the_fast_type_gets_it() -> None:
    """V100s speed *a* up by 4 and *b* by 4/3: only with *a* there do both end within the hour."""
    jobs = [Job("b", 0.0, 1, 1.5 * 3600, "b"), Job("a", 0.0, 1, 4.0 * 3600, "a")]
    _, result = run("makespan", jobs)
    assert {each.job.id: {name.split(":")[0] for s in each.segments for name in s.devices} for each in result.jobs} == {
        "a": {"V100"},
        "b": {"K80"},
    }


@pytest.mark.parametrize("name", FAMILY)
def test_devices_change_hands_at_the_ends_of_rounds_only(name: str) -> None:
    jobs = [Job(str(n), 100.0 * n, 1, 2000.0 + 300 * n, "ab"[n % 2]) for n in range(5)]
    _, result = run(name, jobs)
    for each in result.jobs:
        for segment in each.segments:
            assert segment.start_seconds % 360 == 0
            assert segment.end_seconds % 360 == 0 or segment.end_seconds == each.end_seconds


def test_two_equal_jobs_take_turns_on_one_device() -> None:
    jobs = [Job("x", 0.0, 1, 4.0 * 3600, "a"), Job("y", 0.0, 1, 4.0 * 3600, "a")]
    _, result = run("las", jobs, "V100:1")
    ends = sorted(each.end_seconds for each in result.jobs)
    assert ends == [2 * 3600 - 360, 2 * 3600]


def test_gavels_gate_keeps_a_new_job_waiting() -> None:
    jobs = [Job("x", 0.0, 1, 40_000, "a"), Job("y", 30.0, 1, 400, "a"), Job("z", 400.0, 1, 400, "a")]
    policy, result = run("las", jobs, "V100:4", compat="gavel")
    starts = {each.job.id: each.start_seconds for each in result.jobs}
    assert starts["x"] == 0.0
    assert starts["y"] == 360.0  # Gavel takes a last solution at 0 s for none
    assert starts["z"] >= 360 + 1920
    assert policy.solved < policy.rounds


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ConfigError, match="knows gavel and paper"):
        registry.make("las", Options(compat="slurm"))


def test_leftover_devices_go_to_running_jobs_and_come_back() -> None:
    """One job alone has all types; when another comes, its own are enough."""
    jobs = [Job("x", 0.0, 16, 2000, "resnet50", 64, 128), Job("y", 700.0, 16, 50, "resnet50", 64, 128)]
    result = simulate(jobs, CLUSTER, registry.make("las-mixed"), FreeSizes(), costs.NONE)
    (x,) = [each for each in result.jobs if each.job.id == "x"]
    kinds = [sorted({name.split(":")[0] for name in segment.devices}) for segment in x.segments]
    assert kinds[0] == ["K80", "P100", "V100"]
    assert len(kinds[1]) < 3


def test_a_table_knows_what_sharing_leaves() -> None:
    a, b = Job("x", 0.0, 1, 1, "a"), Job("y", 0.0, 1, 1, "b")
    assert TABLE.slowdown(a, [b], "V100") == 3 / 4
    assert TABLE.slowdown(b, [a], "V100") == 1 / 2
    assert TABLE.speed(Job("x", 0.0, 3, 1, "a"), parse_pools("V100:3")).steps_per_second == pytest.approx(9.5)
    with pytest.raises(ConfigError, match="no device type p100"):
        TABLE.usable(a, "P100")


def test_a_job_is_not_put_where_its_demand_does_not_run() -> None:
    """In Gavel's table some workloads fit on one K80, and not on four."""
    table = Table({"v100": {("a", 1): 1.0, ("a", 4): 3.0}, "k80": {("a", 1): 0.1, ("a", 4): 0.0}}, {})
    jobs = [Job(str(n), 0.0, 4, 900, "a") for n in range(3)]
    for name in (*FAMILY, "tiresias"):
        result = simulate(jobs, parse_pools("K80:4,V100:4"), registry.make(name), table, costs.NONE)
        assert {d.split(":")[0] for each in result.jobs for s in each.segments for d in s.devices} == {"V100"}


def test_a_policy_that_leaves_a_job_where_it_cannot_run_is_told_so() -> None:
    table = Table({"v100": {("a", 1): 1.0}, "k80": {("a", 1): 0.0}}, {})

    class Stubborn(Policy):
        name = "stubborn"

        def allocate(self, snapshot: Snapshot) -> Decision:
            return Decision({state.id: Grant({"K80": 1}) for state in snapshot.queue})

    with pytest.raises(PolicyError, match="stubborn stopped deciding"):
        simulate([Job("x", 0.0, 1, 1, "a")], parse_pools("K80:1,V100:1"), Stubborn(), table, costs.NONE)


def test_the_gate_opens_at_the_time_that_was_asked_for() -> None:
    """The first job ends after 128.57... s: a number for which (a + 1920) - a is less than 1920."""
    jobs = [Job("0", 0.0, 4, 900, "a"), Job("1", 360.0, 4, 30, "a")]
    policy = registry.make("las", Options(compat="gavel"))
    assert len(simulate(jobs, parse_pools("V100:2,K80:4"), policy, TABLE, costs.NONE).jobs) == 2


def test_actions_name_the_types() -> None:
    brain = Scheduler(parse_pools("V100:1,K80:1"), registry.make("las"), TABLE)
    brain.handle(JobArrived(0.0, Job("a", 0.0, 1, 1e6, "a")))
    assert brain.handle(Woken(0.0))[0] == StartJob("a", ("V100:0",))
    brain.handle(JobArrived(10.0, Job("b", 10.0, 1, 1e6, "b")))
    actions = brain.handle(Woken(360.0))
    assert StartJob("b", ("K80:0",)) in actions
    assert not any(isinstance(action, ReallocateJob) for action in actions)
