"""What finer virtual nodes would bring."""

from __future__ import annotations

from itertools import pairwise

from virtualflow.core.devices import parse_pools
from virtualflow.core.profile import Point, Profile, Workload
from virtualflow.solver.finer import finer_plans
from virtualflow.solver.search import solve_fixed

SECONDS = {"V100": 0.03, "P100": 0.10}


def workload(overhead: float) -> Workload:
    """A virtual node takes this long, and some time for each example."""
    return Workload(
        "w",
        {
            name: Profile(name, tuple(Point(size, overhead + size * each) for size in (1, 2, 4, 8, 16)))
            for name, each in SECONDS.items()
        },
    )


def found(overhead: float) -> list[tuple[int, float]]:
    known, pools = workload(overhead), parse_pools("V100:1,P100:1")
    best = solve_fixed(known, pools, 16, 4)
    return [(plan.virtual_nodes, plan.step_seconds / best.step_seconds) for plan in finer_plans(known, pools, best)]


def test_finer_nodes_fit_devices_of_different_speed_better() -> None:
    plans = found(overhead=0.0)
    assert [nodes for nodes, _ in plans] == sorted(nodes for nodes, _ in plans)
    assert plans[-1][1] < 0.95
    assert all(later < earlier for (_, earlier), (_, later) in pairwise(plans))


def test_where_each_node_costs_too_much_finer_ones_are_not_offered() -> None:
    assert found(overhead=1.0) == []
