"""Which devices to use, and how many virtual nodes on each, for the shortest step.

A step takes as long as its slowest device, which runs its virtual nodes one after another and then updates, plus
communication, which grows with the machines and with the devices on each. Two questions, both answered exactly:

*Fixed node size*: a job that exists. A limit for the slowest device bounds the virtual nodes that each device can run;
a machine can run the sum of its devices', and the best M machines are those with the largest sums. So for each M, and
for each number of devices used on a machine, the shortest limit that makes room for all virtual nodes is found by
bisection.

*Free node sizes*: a new job, with one size for each device type. Given a limit, the batches that some choice of sizes
and numbers of virtual nodes adds up to are a set of whole numbers, kept as the bits of one large integer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from virtualflow.core.devices import Pool
from virtualflow.core.profile import Communication, Profile, Workload
from virtualflow.errors import SolverError
from virtualflow.solver.node_shares import SLACK, DeviceGroup, Plan, Share, evenly
from virtualflow.solver.reachable_batches import Batches, unreachable

MAX_LAYOUTS = 4096  # of machines by type; beyond, a type takes part with all its machines or none


def predict(workload: Workload, pools: Sequence[Pool], shares: Sequence[Share]) -> Plan:
    """The step time of a plan given by hand."""
    by_type = {pool.device_type: pool for pool in pools}
    used: dict[str, int] = {}
    for share in shares:
        if share.device_type not in by_type:
            raise SolverError(f"the plan uses {share.device_type}, which is not among the devices")
        used[share.device_type] = used.get(share.device_type, 0) + share.count
    for device_type, count in used.items():
        if count > by_type[device_type].count:
            raise SolverError(f"the plan uses {count} {device_type}, but there are {by_type[device_type].count}")
    slowest, guessed = 0.0, []
    for share in shares:
        profile = workload.profile(share.device_type)
        if not profile.may_hold(share.node_size):
            raise SolverError(
                f"the plan puts virtual nodes of {share.node_size} examples on {share.device_type}, whose memory holds "
                f"at most {profile.largest}"
            )
        slowest = max(slowest, share.virtual_nodes * profile.seconds(share.node_size) + profile.update_seconds)
        if not profile.is_measured(share.node_size):
            guessed.append(share.device_type)
    places = [(by_type[device_type], count) for device_type, count in used.items()]
    return Plan(tuple(shares), slowest, cheapest(workload.communication, places), tuple(dict.fromkeys(guessed)))


def cheapest(communication: Communication, places: Sequence[tuple[Pool, int]]) -> float:
    """The lowest cost of communication with the devices of *places*: on few machines, or few on each."""
    largest = max(min(pool.machines[0], count) for pool, count in places)
    costs = []
    for most in range(1, largest + 1):
        machines = [_machines_for(pool, count, most) for pool, count in places]
        if None not in machines:
            costs.append(communication.seconds(most, sum(count for count in machines if count is not None)))
    return min(costs)


def solve_fixed(workload: Workload, pools: Sequence[Pool], node_size: int, virtual_nodes: int) -> Plan:
    """The best mapping of a job that exists: *virtual_nodes* virtual nodes of one size."""
    groups = [group for pool in pools if (group := _group(workload, pool, node_size)) is not None]
    if not groups:
        raise SolverError(_too_large(workload, pools, node_size))
    ties = Ties()
    for most, machines, cost in _levels(workload.communication, [group.pool for group in groups]):
        if math.isfinite(ties.best) and _room(groups, ties.best - cost, machines, most) < virtual_nodes:
            continue
        limit = min(
            group.time(nodes)
            for group in groups
            if (nodes := _fewest_nodes(groups, group, virtual_nodes, machines, most)) is not None
        )
        ties.add(limit + cost, partial(_filled, groups, virtual_nodes, limit, machines, most))
    return ties.fewest_devices(workload, pools)


def solve_free(workload: Workload, pools: Sequence[Pool], batch_size: int) -> Plan:
    """The best plan of a new job: one node size for each device type, the batch exactly met."""
    choices = [_choices(workload, pool, batch_size) for pool in pools]
    ties = Ties()
    for counts, cost in _layouts(workload.communication, pools):
        search = Batches(choices, counts, batch_size)
        if search.could_meet(ties.best - cost) and search.meets(ties.best - cost):
            limit = search.shortest(ties.best - cost)
            ties.add(limit + cost, partial(search.shares, limit))
    if not ties.plans:
        raise SolverError(unreachable(choices, batch_size))
    return ties.fewest_devices(workload, pools)


class Ties:
    """The shortest steps found so far, all equally long, as ways to make their plans."""

    def __init__(self) -> None:
        self.best = math.inf
        self.plans: list[Callable[[], list[Share]]] = []

    def add(self, seconds: float, plan: Callable[[], list[Share]]) -> None:
        if seconds < self.best * (1 - SLACK):
            self.best, self.plans = seconds, []
        self.plans.append(plan)

    def fewest_devices(self, workload: Workload, pools: Sequence[Pool]) -> Plan:
        plans = [predict(workload, pools, plan()) for plan in self.plans]
        return min(plans, key=lambda plan: plan.devices)


def _group(workload: Workload, pool: Pool, node_size: int) -> DeviceGroup | None:
    profile = workload.profile(pool.device_type)
    if not profile.may_hold(node_size):
        return None
    alike = tuple((size, len(list(group))) for size, group in itertools.groupby(pool.machines))
    return DeviceGroup(pool, node_size, profile.seconds(node_size), profile.update_seconds, alike)


def _choices(workload: Workload, pool: Pool, batch_size: int) -> list[DeviceGroup]:
    profile: Profile = workload.profile(pool.device_type)
    sizes = [point.node_size for point in profile.points if point.node_size <= batch_size]
    return [DeviceGroup(pool, size, profile.seconds(size), profile.update_seconds) for size in sizes]


def _machines_for(pool: Pool, count: int, most: int) -> int | None:
    """How many machines it takes to have *count* devices, with at most *most* on each."""
    left = count
    for used, size in enumerate(pool.machines):
        if left <= 0:
            return used
        left -= min(size, most)
    return len(pool.machines) if left <= 0 else None


def _levels(communication: Communication, pools: Sequence[Pool]) -> Iterator[tuple[int, int, float]]:
    """Devices on a machine, machines, and what they cost: the largest of all that cost the same.

    Round numbers come first, so that something good is found early and most of the others are dismissed by one look.
    """
    largest, machines = max(pool.machines[0] for pool in pools), sum(len(pool.machines) for pool in pools)
    by_machines = [(n, communication.seconds(1, n)) for n in _steps(machines, lambda n: communication.seconds(1, n))]
    for most in _steps(largest, lambda n: communication.seconds(n, 1)):
        by_devices = communication.seconds(most, 1)
        for used, cost in by_machines:
            yield most, used, by_devices + cost


def _steps(largest: int, cost: Callable[[int], float]) -> list[int]:
    costs = [cost(n) for n in range(1, largest + 1)]
    steps = [n for n in range(largest, 0, -1) if n == largest or costs[n - 1] < costs[n]]
    return sorted(steps, key=lambda n: -(n & -n))


def _room(groups: Sequence[DeviceGroup], limit: float, machines: int, most: int) -> int:
    """How many virtual nodes the best *machines* machines finish within *limit*, with *most* devices on each."""
    sums = []
    for group in groups:
        nodes = group.fits(limit)
        sums += [(nodes * min(size, most), count) for size, count in group.alike]
    sums.sort(reverse=True)
    room, left = 0, machines
    for value, count in sums:
        taken = min(left, count)
        room += value * taken
        left -= taken
    return room


def _fewest_nodes(
    groups: Sequence[DeviceGroup], group: DeviceGroup, wanted: int, machines: int, most: int
) -> int | None:
    """The fewest virtual nodes on a device of *group* whose time, as a limit, makes room for all."""
    low, high = 0, wanted
    if _room(groups, group.time(high), machines, most) < wanted:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if _room(groups, group.time(middle), machines, most) >= wanted:
            high = middle
        else:
            low = middle
    return high


def _filled(groups: Sequence[DeviceGroup], virtual_nodes: int, limit: float, machines: int, most: int) -> list[Share]:
    """All virtual nodes on as few devices as finish them within *limit*."""
    usable = [group for group in groups if group.fits(limit) > 0]
    usable.sort(key=lambda group: -group.fits(limit))
    best: dict[int, int] | None = None
    for used in _selections(usable, limit, machines):
        counts, left = {}, virtual_nodes
        for place, group in enumerate(usable):
            room = sum(min(size, most) for size in group.pool.machines[: used[place]])
            counts[place] = max(0, min(room, math.ceil(left / group.fits(limit))))
            left -= counts[place] * group.fits(limit)
        if left <= 0 and (best is None or sum(counts.values()) < sum(best.values())):
            best = counts
    assert best is not None
    surplus = sum(best[place] * group.fits(limit) for place, group in enumerate(usable)) - virtual_nodes
    shares = []
    for place, group in reversed(list(enumerate(usable))):
        total = best[place] * group.fits(limit)
        given_back = min(surplus, max(0, total - best[place]))
        surplus -= given_back
        shares += evenly(group, best[place], total - given_back)
    return list(reversed(shares))


def _selections(groups: Sequence[DeviceGroup], limit: float, machines: int) -> Iterator[tuple[int, ...]]:
    """How many machines of each group to draw from: all choices if they are few, else those with the most room."""
    if math.prod(len(group.pool.machines) + 1 for group in groups) <= MAX_LAYOUTS:
        ranges = [range(min(len(group.pool.machines), machines) + 1) for group in groups]
        yield from (used for used in itertools.product(*ranges) if sum(used) <= machines)
        return
    order = sorted(
        ((group.fits(limit) * size, place) for place, group in enumerate(groups) for size in group.pool.machines),
        reverse=True,
    )
    places = [place for _, place in order[:machines]]
    yield tuple(places.count(place) for place in range(len(groups)))


def _layouts(communication: Communication, pools: Sequence[Pool]) -> Iterator[tuple[tuple[int, ...], float]]:
    """How many devices of each pool may be used, and what that costs; the cheapest in communication last."""
    ranges: list[Sequence[int]] = [range(len(pool.machines), -1, -1) for pool in pools]
    if math.prod(len(choices) for choices in ranges) > MAX_LAYOUTS:
        ranges = [(len(pool.machines), 0) for pool in pools]
    largest = max(pool.machines[0] for pool in pools)
    for most in _steps(largest, lambda n: communication.seconds(n, 1)):
        for used in itertools.product(*ranges):
            if any(used):
                counts = (
                    sum(min(size, most) for size in pool.machines[:number])
                    for pool, number in zip(pools, used, strict=True)
                )
                yield tuple(counts), communication.seconds(most, sum(used))


def _too_large(workload: Workload, pools: Sequence[Pool], node_size: int) -> str:
    largest = {pool.device_type: workload.profile(pool.device_type).largest for pool in pools}
    fits = ", ".join(f"{size} on {device_type}" for device_type, size in largest.items())
    return (
        f"a virtual node of {node_size} examples fits on no device: the largest that did is {fits}. "
        "Use more virtual nodes, so that each is smaller."
    )


def on_one_machine(workload: Workload, pools: Sequence[Pool]) -> tuple[Workload, tuple[Pool, ...]]:
    """The same for devices of one machine, of any types: each counts as a machine, with the costs between devices."""
    apart = tuple(replace(pool, machines=(1,) * pool.count) for pool in pools)
    return replace(workload, communication=Communication((), workload.communication.by_devices)), apart
