"""Themis: the theorems of its mechanism, its measure of fairness, and its leases."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
from benchmarks.policies import largest_rho, rho
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualflow.cluster.job import Job
from virtualflow.cluster.policies import registry
from virtualflow.cluster.policies.base import Policy
from virtualflow.cluster.policies.themis import Themis, partial_allocation, proportionally_fair
from virtualflow.cluster.throughput.model import Profiled
from virtualflow.core.devices import parse_pools
from virtualflow.sim import costs
from virtualflow.sim.engine import simulate
from virtualflow.sim.result import Run


@pytest.mark.parametrize("bidders", [2, 3, 4, 8, 12])
def test_equal_bidders_keep_what_the_mechanisms_paper_says(bidders: int) -> None:
    """Without one of n, the others would have n / (n - 1) of what they have: c = (1 - 1/n) ** (n - 1), down to 1/e."""
    part = (1 - 1 / bidders) ** (bidders - 1)
    devices = bidders * (bidders - 1)  # so that all can share evenly, with one of them and without
    won, parts = proportionally_fair([[float(count) for count in range(devices + 1)]] * bidders, devices)
    assert won == [bidders - 1] * bidders
    assert parts == pytest.approx([part] * bidders)
    assert part > 1 / math.e


def test_a_worked_auction() -> None:
    """Bids of 1, 2, 3, 4 and of 3, 4, 4, 4 for 1 to 4 devices. Three and one: 3 x 3 = 9; two and two: 2 x 4 = 8.

    Alone, the first would have bid 4 and the second 4: they keep 3/4 of 3 devices and 3/4 of 1.
    """
    tables = [[0.0, 1.0, 2.0, 3.0, 4.0], [0.0, 3.0, 4.0, 4.0, 4.0]]
    assert proportionally_fair(tables, 4) == ([3, 1], pytest.approx([3 / 4, 3 / 4]))
    assert partial_allocation(tables, 4) == pytest.approx([9 / 4, 3 / 4])


bids = st.lists(st.integers(1, 20), min_size=2, max_size=4).map(lambda some: [float(bid) for bid in sorted(some)])


def product_without(tables: list[list[float]], devices: int, place: int | None = None) -> float:
    """The largest product of bids, of all or of all but one, by trying every sharing out."""
    return max(
        math.prod(table[count] for other, (table, count) in enumerate(zip(tables, some, strict=True)) if other != place)
        for some in itertools.product(*(range(len(table)) for table in tables))
        if sum(some) <= devices and (place is None or some[place] == 0)
    )


@settings(max_examples=40, deadline=None)
@given(tables=st.lists(bids, min_size=1, max_size=4), devices=st.integers(1, 7))
def test_no_other_sharing_out_has_a_larger_product(tables: list[list[float]], devices: int) -> None:
    won, parts = proportionally_fair(tables, devices)
    assert sum(won) <= devices
    assert math.prod(table[count] for table, count in zip(tables, won, strict=True)) == pytest.approx(
        product_without(tables, devices)
    )
    for place, part in enumerate(parts):
        others = math.prod(tables[other][won[other]] for other in range(len(tables)) if other != place)
        assert part == pytest.approx(others / product_without(tables, devices, place))
        assert 0 < part <= 1


@settings(max_examples=60, deadline=None)
@given(tables=st.lists(bids, min_size=2, max_size=4), lie=bids, devices=st.integers(1, 7))
def test_nobody_gains_from_a_bid_that_is_not_true(tables: list[list[float]], lie: list[float], devices: int) -> None:
    """The part that is kept, times its true worth: the mechanism's reason for being."""
    true, lie = tables[0], (lie + [lie[-1]] * 4)[: len(tables[0])]
    won, parts = proportionally_fair(tables, devices)
    lied, cost = proportionally_fair([lie, *tables[1:]], devices)
    assert parts[0] * true[won[0]] >= cost[0] * true[lied[0]] * (1 - 1e-9)


def run(jobs: list[Job], policy: Policy, devices: str = "V100:4") -> Run:
    return simulate(jobs, parse_pools(devices), policy, Profiled(), costs.NONE)


def test_alone_a_job_has_all_and_is_as_fast_as_on_its_own() -> None:
    result = run([Job("a", 0.0, 4, 5000.0)], Themis())
    assert rho(result, 4) == pytest.approx({"a": 1.0})


def test_a_lease_is_kept_to_its_end() -> None:
    jobs = [Job("a", 0.0, 4, 3000.0), Job("b", 100.0, 4, 3000.0)]
    result = run(jobs, Themis(lease_seconds=600.0))
    segments = sorted((s.start_seconds, each.job.id, len(s.devices)) for each in result.jobs for s in each.segments)
    assert segments[:2] == [(0.0, "a", 4), (600.0, "b", 4)]  # whoever has nothing is the least fairly treated
    assert all(seconds % 600 == 0 for seconds, _, _ in segments[:-1])


def test_more_bidders_pay_more_and_all_devices_are_in_use() -> None:
    """With f = 0 both bid; what they pay is left over, and goes back to them where no one else is there."""
    jobs = [Job("a", 0.0, 4, 6000.0), Job("b", 0.0, 4, 6000.0)]
    result = run(jobs, Themis(fairness=0.0))
    assert result.accounts.free == 0.0
    assert max(rho(result, 4).values()) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_worst_treated_job_fares_better_than_under_other_policies(seed: int) -> None:
    """The paper: 1.2 at most on its trace, more under Tiresias. Here 1.2, 1.4 and 1.5 against 2.3, 2.1 and 3.5."""
    assert (
        largest_rho(Themis(), seed) < 1.6 < min(largest_rho(registry.make(name), seed) for name in ("tiresias", "fifo"))
    )


def test_shorter_leases_are_fairer() -> None:
    """As the paper says."""
    short, long = (
        statistics.mean(largest_rho(Themis(lease_seconds=seconds), seed) for seed in range(3))
        for seconds in (600.0, 4800.0)
    )
    assert short < long
