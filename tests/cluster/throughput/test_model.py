"""Speeds from profiles."""

from __future__ import annotations

import pytest

from virtualflow.cluster.job import Job
from virtualflow.cluster.throughput.model import Profiled, Speed
from virtualflow.core.devices import parse_pools
from virtualflow.errors import ConfigError
from virtualflow.solver.profile_files import built_in
from virtualflow.solver.search import solve_fixed

BERT = Job("A", 0.0, 4, 100.0, workload="bert-base", node_size=8, virtual_nodes=8)


def test_a_job_is_as_fast_as_the_solver_says() -> None:
    plan = solve_fixed(built_in("bert-base"), parse_pools("V100:4"), 8, 8)
    speed = Profiled().speed(BERT, parse_pools("V100:4"))
    assert speed.steps_per_second == 1 / plan.step_seconds
    assert speed.devices == plan.devices


def test_mixed_types_and_several_machines_are_told_apart() -> None:
    resnet = Job("R", 0.0, 4, 1.0, workload="resnet50", node_size=256, virtual_nodes=128)
    together, apart, mixed = (
        Profiled().speed(resnet, parse_pools(pools)).steps_per_second
        for pools in ("V100:4", "V100:2+2", "V100:4,P100:8")
    )
    assert apart < together < mixed


def test_factors_make_steps_longer_but_not_communication() -> None:
    pools = parse_pools("V100:1")
    plain, slower = Profiled().speed(BERT, pools), Profiled(slower={"bert-base": 2.0}).speed(BERT, pools)
    assert slower.steps_per_second == pytest.approx(plain.steps_per_second / 2)


def test_without_a_profile_speed_grows_linearly_up_to_the_demand() -> None:
    job = Job("L", 0.0, 4, 100.0)
    speeds = [Profiled().speed(job, parse_pools(f"V100:{n}")) for n in (1, 3, 4, 6)]
    assert speeds == [Speed(0.25, 1), Speed(0.75, 3), Speed(1.0, 4), Speed(1.0, 4)]


def test_what_is_not_known_or_does_not_fit_says_so() -> None:
    big = Job("B", 0.0, 1, 1.0, workload="resnet50", node_size=256)
    assert Profiled().usable(big, "V100")
    assert not Profiled().usable(big, "K80")
    assert not Profiled().usable(big, "abacus")
    with pytest.raises(ConfigError, match="--throughputs"):
        Profiled().usable(Job("C", 0.0, 1, 1.0, workload="chess"), "V100")
