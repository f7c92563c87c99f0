"""The solver against a brute force that tries everything, on small random instances."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualflow.core.devices import Pool, parse_pools
from virtualflow.core.profile import Communication, Point, Profile, Workload
from virtualflow.errors import SolverError
from virtualflow.solver.node_shares import Plan, Share
from virtualflow.solver.profile_files import built_in
from virtualflow.solver.search import predict, solve_fixed, solve_free

TYPES = ("A", "B", "C")
costs = st.integers(0, 6).map(float)


@st.composite
def lines(draw: st.DrawFn) -> tuple[tuple[int, float], ...]:
    counts = draw(st.lists(st.integers(2, 5), unique=True, max_size=3).map(sorted))
    return tuple((count, draw(costs)) for count in counts)


@st.composite
def instances(draw: st.DrawFn, *, sizes: int) -> tuple[Workload, tuple[Pool, ...]]:
    types = TYPES[: draw(st.integers(1, 3))]
    profiles, pools = {}, []
    for name in types:
        chosen = draw(st.lists(st.integers(1, 5), min_size=1, max_size=sizes, unique=True).map(sorted))
        points = tuple(Point(size, float(draw(st.integers(1, 9)))) for size in chosen)
        profiles[name] = Profile(name, points, draw(costs))
        machines = draw(st.lists(st.integers(1, 2), min_size=1, max_size=2).map(lambda m: sorted(m, reverse=True)))
        pools.append(Pool(name, tuple(machines)))
    return Workload("random", profiles, Communication(draw(lines()), draw(lines()))), tuple(pools)


def usages(pools: Sequence[Pool]) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Every way to use some devices of some machines: how many of each type, the most on a machine, the machines."""
    machines = [(place, size) for place, pool in enumerate(pools) for size in pool.machines]
    for used in itertools.product(*(range(size + 1) for _, size in machines)):
        if any(used):
            counts = [0] * len(pools)
            for (place, _), number in zip(machines, used, strict=True):
                counts[place] += number
            yield tuple(counts), max(used), sum(number > 0 for number in used)


def best_fixed(workload: Workload, pools: Sequence[Pool], size: int, nodes: int) -> tuple[float, int] | None:
    best = None
    for counts, most, machines in set(usages(pools)):
        kinds = [workload.profile(pool.device_type) for pool in pools]
        if any(count and kind.largest < size for count, kind in zip(counts, kinds, strict=True)):
            continue
        devices = [kind for count, kind in zip(counts, kinds, strict=True) for _ in range(count)]
        if len(devices) > nodes:
            continue
        loads = [1] * len(devices)
        for _ in range(nodes - len(devices)):  # the next one where it ends first
            ends = [
                (load + 1) * kind.seconds(size) + kind.update_seconds for load, kind in zip(loads, devices, strict=True)
            ]
            loads[ends.index(min(ends))] += 1
        slowest = max(
            load * kind.seconds(size) + kind.update_seconds for load, kind in zip(loads, devices, strict=True)
        )
        result = (round(slowest + workload.communication.seconds(most, machines), 9), len(devices))
        best = result if best is None else min(best, result)
    return best


def best_free(workload: Workload, pools: Sequence[Pool], batch: int) -> tuple[float, int] | None:
    best = None
    for counts, most, machines in set(usages(pools)):
        options = []
        for pool, count in zip(pools, counts, strict=True):
            profile = workload.profile(pool.device_type)
            options.append(
                [(0, 0.0)]
                if count == 0
                else [
                    (total * point.node_size, -(-total // count) * point.seconds + profile.update_seconds)
                    for point in profile.points
                    for total in range(count, batch // point.node_size + 1)
                ]
            )
        for chosen in itertools.product(*options):
            if sum(examples for examples, _ in chosen) == batch:
                slowest = max(seconds for _, seconds in chosen)
                result = (round(slowest + workload.communication.seconds(most, machines), 9), sum(counts))
                best = result if best is None else min(best, result)
    return best


def check(plan: Plan, workload: Workload, pools: Sequence[Pool]) -> None:
    assert plan == predict(workload, pools, plan.shares)
    for name in plan.types:
        loads = [share.virtual_nodes for share in plan.shares if share.device_type == name]
        assert len({share.node_size for share in plan.shares if share.device_type == name}) == 1
        assert max(loads) - min(loads) <= 1


@settings(max_examples=2000, deadline=None)
@given(instances(sizes=2), st.integers(1, 4), st.integers(1, 9))
def test_fixed_node_size_is_solved_exactly(instance: tuple[Workload, tuple[Pool, ...]], size: int, nodes: int) -> None:
    workload, pools = instance
    expected = best_fixed(workload, pools, size, nodes)
    if expected is None:
        with pytest.raises(SolverError, match="fits on no device"):
            solve_fixed(workload, pools, size, nodes)
        return
    plan = solve_fixed(workload, pools, size, nodes)
    check(plan, workload, pools)
    assert plan.virtual_nodes == nodes
    assert (plan.step_seconds, plan.devices) == (pytest.approx(expected[0]), expected[1])


@settings(max_examples=1000, deadline=None)
@given(instances(sizes=3), st.integers(1, 10))
def test_free_node_sizes_are_solved_exactly(instance: tuple[Workload, tuple[Pool, ...]], batch: int) -> None:
    workload, pools = instance
    expected = best_free(workload, pools, batch)
    if expected is None:
        with pytest.raises(SolverError, match=r"nearest that work|smaller than every"):
            solve_free(workload, pools, batch)
        return
    plan = solve_free(workload, pools, batch)
    check(plan, workload, pools)
    assert plan.batch_size == batch
    assert (plan.step_seconds, plan.devices) == (pytest.approx(expected[0]), expected[1])


def test_per_device_counts_that_are_no_powers_of_two_beat_v100s_alone() -> None:
    # The paper's H1: its solver fell back to V100s only.
    workload, both = built_in("resnet50"), parse_pools("V100:1+1,P100:1+1")
    mixed, alone = solve_free(workload, both, 8192), solve_free(workload, both[:1], 8192)
    assert mixed.types == ("V100", "P100")
    assert mixed.step_seconds < 0.95 * alone.step_seconds


def test_a_device_that_would_not_help_stays_unused() -> None:
    profiles = {"fast": Profile("fast", (Point(1, 1.0),)), "slow": Profile("slow", (Point(1, 100.0),))}
    plan = solve_fixed(Workload("w", profiles), parse_pools("fast:2,slow:8"), 1, 8)
    assert plan.shares == (Share("fast", 2, 4, 1),)


def test_a_batch_that_nothing_adds_up_to_names_the_nearest_that_work() -> None:
    with pytest.raises(SolverError, match="7936 and 8064"):
        solve_free(built_in("resnet50"), parse_pools("V100:2"), 8000)


def calls_of(solve: Callable[[], object]) -> int:
    """How many functions are called: work that no other load on the machine changes."""
    count = 0

    def counting(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counting)
    try:
        solve()
    finally:
        sys.setprofile(before)
    return count


def on_eight_types(machines: tuple[int, ...]) -> Plan:
    profiles = {str(n): Profile(str(n), (Point(1, 1.0 + n),), 0.5) for n in range(8)}
    workload = Workload("w", profiles, Communication(((2, 0.1), (2048, 9.0)), ((2, 0.1), (4096, 60.0))))
    return solve_fixed(workload, [Pool(name, machines) for name in profiles], 1, 65536)


@pytest.mark.parametrize(("few", "many"), [((256,), (2048,)), ((8,) * 32, (8,) * 256)])
def test_the_work_grows_no_faster_than_the_devices(few: tuple[int, ...], many: tuple[int, ...]) -> None:
    assert calls_of(lambda: on_eight_types(many)) < 1.5 * 8 * calls_of(lambda: on_eight_types(few))


def test_a_plan_for_thousands_of_devices_has_all_virtual_nodes() -> None:
    assert on_eight_types((2048,)).virtual_nodes == 65536
