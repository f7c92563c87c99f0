"""Which devices to use, and how many virtual nodes on each, for the shortest step.

A step takes as long as its slowest device, which runs its virtual nodes one after another and then updates, plus
communication, which grows with the machines and with the devices on each. Two questions, both answered exactly:

*Fixed node size*: a job that exists. Given a limit for the slowest device, each device can run so many virtual nodes,
a machine the sum of its devices', and the best M machines are those with the largest sums. So for each M, and for each
number of devices used on a machine, the shortest limit that makes room for all virtual nodes is found by bisection.

*Free node sizes*: a new job, with one size for each device type. Given a limit, the batches that some choice of sizes
and numbers of virtual nodes adds up to are a set of whole numbers, kept as the bits of one large integer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from virtualflow.core.devices import Pool
from virtualflow.core.profile import Communication, Profile, Workload
from virtualflow.errors import SolverError

MOST_LAYOUTS = 4096  # of machines by type; beyond, a type takes part with all its machines or none
MOST_WORK = 3e8  # array elements touched while looking for the fewest devices; beyond, few is good enough
SLACK = 1e-9  # what rounding may hide: of a virtual node, of a step


@dataclass(frozen=True, slots=True)
class Share:
    """So many devices of a type with so many virtual nodes each."""

    device_type: str
    count: int
    virtual_nodes: int
    node_size: int

    @property
    def examples(self) -> int:
        return self.count * self.virtual_nodes * self.node_size


@dataclass(frozen=True, slots=True)
class Plan:
    """What runs where, and how long a step takes."""

    shares: tuple[Share, ...]
    compute_seconds: float  # of the slowest device, with its update
    communication_seconds: float
    guessed: tuple[str, ...] = ()  # types whose time at this node size was not measured

    @property
    def step_seconds(self) -> float:
        return self.compute_seconds + self.communication_seconds

    @property
    def batch_size(self) -> int:
        return sum(share.examples for share in self.shares)

    @property
    def virtual_nodes(self) -> int:
        return sum(share.count * share.virtual_nodes for share in self.shares)

    @property
    def devices(self) -> int:
        return sum(share.count for share in self.shares)

    @property
    def examples_per_second(self) -> float:
        return self.batch_size / self.step_seconds

    @property
    def types(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(share.device_type for share in self.shares))


@dataclass(frozen=True, slots=True)
class Kind:
    """Devices of one type at one node size."""

    pool: Pool
    node_size: int
    seconds: float  # of one virtual node
    update: float
    alike: tuple[tuple[int, int], ...] = ()  # machines by size: the size, and how many have it

    def fits(self, limit: float) -> int:
        """How many virtual nodes a device finishes within *limit*."""
        return max(0, int((limit - self.update) / self.seconds + SLACK))

    def time(self, virtual_nodes: int) -> float:
        return virtual_nodes * self.seconds + self.update


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
        slowest = max(slowest, share.virtual_nodes * profile.seconds(share.node_size) + profile.update_seconds)
        if not profile.is_measured(share.node_size):
            guessed.append(share.device_type)
    places = [(by_type[device_type], count) for device_type, count in used.items()]
    return Plan(tuple(shares), slowest, cheapest(workload.communication, places), tuple(dict.fromkeys(guessed)))


def cheapest(communication: Communication, places: Sequence[tuple[Pool, int]]) -> float:
    """The least that communication costs with so many devices of each pool: on few machines, or few on each."""
    largest = max(min(pool.machines[0], count) for pool, count in places)
    costs = []
    for most in range(1, largest + 1):
        machines = [_machines_for(pool, count, most) for pool, count in places]
        if None not in machines:
            costs.append(communication.seconds(most, sum(each for each in machines if each is not None)))
    return min(costs)


def solve_fixed(workload: Workload, pools: Sequence[Pool], node_size: int, virtual_nodes: int) -> Plan:
    """The best mapping of a job that exists: so many virtual nodes of one size."""
    kinds = [kind for pool in pools if (kind := _kind(workload, pool, node_size)) is not None]
    if not kinds:
        raise SolverError(_too_large(workload, pools, node_size))
    ties = Ties()
    for most, machines, cost in _levels(workload.communication, [kind.pool for kind in kinds]):
        if math.isfinite(ties.best) and _room(kinds, ties.best - cost, machines, most) < virtual_nodes:
            continue
        limit = min(
            kind.time(nodes)
            for kind in kinds
            if (nodes := _fewest_nodes(kinds, kind, virtual_nodes, machines, most)) is not None
        )
        ties.add(limit + cost, partial(_filled, kinds, virtual_nodes, limit, machines, most))
    return ties.fewest_devices(workload, pools)


def solve_free(workload: Workload, pools: Sequence[Pool], batch_size: int) -> Plan:
    """The best plan of a new job: one node size for each device type, the batch exactly met."""
    choices = [_choices(workload, pool, batch_size) for pool in pools]
    ties = Ties()
    for counts, cost in _layouts(workload.communication, pools):
        search = _Batches(choices, counts, batch_size)
        if search.could_meet(ties.best - cost) and search.meets(ties.best - cost):
            limit = search.shortest(ties.best - cost)
            ties.add(limit + cost, partial(search.shares, limit))
    if not ties.plans:
        raise SolverError(_unreachable(choices, batch_size))
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


def _kind(workload: Workload, pool: Pool, node_size: int) -> Kind | None:
    profile = workload.profile(pool.device_type)
    if node_size > profile.largest:
        return None  # beyond its memory
    alike = tuple((size, len(list(group))) for size, group in itertools.groupby(pool.machines))
    return Kind(pool, node_size, profile.seconds(node_size), profile.update_seconds, alike)


def _choices(workload: Workload, pool: Pool, batch_size: int) -> list[Kind]:
    profile: Profile = workload.profile(pool.device_type)
    sizes = [point.node_size for point in profile.points if point.node_size <= batch_size]
    return [Kind(pool, size, profile.seconds(size), profile.update_seconds) for size in sizes]


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


def _room(kinds: Sequence[Kind], limit: float, machines: int, most: int) -> int:
    """How many virtual nodes the best *machines* machines finish within *limit*, with *most* devices on each."""
    sums = []
    for kind in kinds:
        nodes = kind.fits(limit)
        sums += [(nodes * min(size, most), count) for size, count in kind.alike]
    sums.sort(reverse=True)
    room, left = 0, machines
    for value, count in sums:
        taken = min(left, count)
        room += value * taken
        left -= taken
    return room


def _fewest_nodes(kinds: Sequence[Kind], kind: Kind, wanted: int, machines: int, most: int) -> int | None:
    """The fewest virtual nodes on a device of *kind* whose time, as a limit, makes room for all."""
    low, high = 0, wanted
    if _room(kinds, kind.time(high), machines, most) < wanted:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if _room(kinds, kind.time(middle), machines, most) >= wanted:
            high = middle
        else:
            low = middle
    return high


def _filled(kinds: Sequence[Kind], virtual_nodes: int, limit: float, machines: int, most: int) -> list[Share]:
    """All virtual nodes on as few devices as finish them within *limit*."""
    usable = [kind for kind in kinds if kind.fits(limit) > 0]
    usable.sort(key=lambda kind: -kind.fits(limit))
    best: dict[int, int] | None = None
    for used in _selections(usable, limit, machines):
        counts, left = {}, virtual_nodes
        for place, kind in enumerate(usable):
            there = sum(min(size, most) for size in kind.pool.machines[: used[place]])
            counts[place] = max(0, min(there, math.ceil(left / kind.fits(limit))))
            left -= counts[place] * kind.fits(limit)
        if left <= 0 and (best is None or sum(counts.values()) < sum(best.values())):
            best = counts
    assert best is not None
    surplus = sum(best[place] * kind.fits(limit) for place, kind in enumerate(usable)) - virtual_nodes
    shares = []
    for place, kind in reversed(list(enumerate(usable))):
        total = best[place] * kind.fits(limit)
        given_back = min(surplus, max(0, total - best[place]))
        surplus -= given_back
        shares += _evenly(kind, best[place], total - given_back)
    return list(reversed(shares))


def _selections(kinds: Sequence[Kind], limit: float, machines: int) -> Iterator[tuple[int, ...]]:
    """How many machines of each kind to draw from: all choices if they are few, else those with the most room."""
    if math.prod(len(kind.pool.machines) + 1 for kind in kinds) <= MOST_LAYOUTS:
        ranges = [range(min(len(kind.pool.machines), machines) + 1) for kind in kinds]
        yield from (used for used in itertools.product(*ranges) if sum(used) <= machines)
        return
    order = sorted(
        ((kind.fits(limit) * size, place) for place, kind in enumerate(kinds) for size in kind.pool.machines),
        reverse=True,
    )
    places = [place for _, place in order[:machines]]
    yield tuple(places.count(place) for place in range(len(kinds)))


def _evenly(kind: Kind, count: int, total: int) -> list[Share]:
    """*total* virtual nodes on *count* devices of one type, which differ by one at most."""
    if count == 0:
        return []
    each, more = divmod(total, count)
    parts = [(more, each + 1), (count - more, each)]
    return [Share(kind.pool.device_type, number, nodes, kind.node_size) for number, nodes in parts if number and nodes]


def _layouts(communication: Communication, pools: Sequence[Pool]) -> Iterator[tuple[tuple[int, ...], float]]:
    """How many devices of each pool may be used, and what that costs; the cheapest in communication last."""
    ranges: list[Sequence[int]] = [range(len(pool.machines), -1, -1) for pool in pools]
    if math.prod(len(each) for each in ranges) > MOST_LAYOUTS:
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


class _Batches:
    """The batches that so many devices of each pool can process within a limit."""

    def __init__(self, choices: Sequence[Sequence[Kind]], counts: Sequence[int], batch_size: int) -> None:
        self._choices = [(kinds, count) for kinds, count in zip(choices, counts, strict=True) if kinds and count]
        # Fast ones last: the way back from the batch begins with them, so that slow ones stay unused if they can.
        self._choices.sort(key=lambda entry: -min(kind.seconds / kind.node_size for kind in entry[0]))
        self._batch_size = batch_size

    def could_meet(self, limit: float) -> bool:
        """Whether the examples would be enough, if any number of them could be had."""
        room = 0
        for kinds, count in self._choices:
            room += max(self._nodes(kind, count, limit) * kind.node_size for kind in kinds)
        return room >= self._batch_size

    def meets(self, limit: float) -> bool:
        return bool(self._reached(limit)[-1] >> self._batch_size & 1)

    def shortest(self, limit: float) -> float:
        """The smallest limit that meets the batch; *limit* is one that does."""
        low, high = 0.0, limit if math.isfinite(limit) else self._alone()
        for _ in range(50):  # what could not do at all, first
            middle = (low + high) / 2
            low, high = (low, middle) if self.could_meet(middle) else (middle, high)
        low, high = low * (1 - SLACK), (limit if math.isfinite(limit) else self._alone()) * (1 + SLACK)
        times = sorted(
            {
                kind.time(nodes)
                for kinds, _ in self._choices
                for kind in kinds
                for nodes in range(max(1, kind.fits(low)), kind.fits(high) + 1)
                if low <= kind.time(nodes) <= high
            }
        )
        first, last = 0, len(times) - 1
        while first < last:
            middle_place = (first + last) // 2
            if self.meets(times[middle_place]):
                last = middle_place
            else:
                first = middle_place + 1
        return times[first]

    def _alone(self) -> float:
        """Enough for any batch that can be met at all."""
        return max(kind.time(self._batch_size) for kinds, _ in self._choices for kind in kinds)

    def _nodes(self, kind: Kind, count: int, limit: float) -> int:
        if math.isinf(limit):
            return self._batch_size // kind.node_size
        return min(count * kind.fits(limit), self._batch_size // kind.node_size)

    def _reached(self, limit: float) -> list[int]:
        """After each pool, the batches that can be made, as bits."""
        mask = (1 << (self._batch_size + 1)) - 1
        reached = [1]
        for kinds, count in self._choices:
            bits = reached[-1]
            for kind in kinds:
                bits |= _spread(reached[-1], kind.node_size, self._nodes(kind, count, limit)) & mask
            reached.append(bits)
        return reached

    def shares(self, limit: float) -> list[Share]:
        """A plan within *limit* that meets the batch with as few devices as possible."""
        work = sum(
            self._nodes(kind, count, limit) * self._batch_size for kinds, count in self._choices for kind in kinds
        )
        steps = self._fewest(limit) if work <= MOST_WORK else self._any(limit)
        shares = []
        for kind, nodes in steps:
            shares += _evenly(kind, math.ceil(nodes / kind.fits(limit)), nodes)
        return shares

    def _any(self, limit: float) -> list[tuple[Kind, int]]:
        reached, left, steps = self._reached(limit), self._batch_size, []
        for place in range(len(self._choices) - 1, -1, -1):
            kinds, count = self._choices[place]
            options = (
                (nodes * kind.node_size, kind, nodes)
                for kind in kinds
                for nodes in range(min(self._nodes(kind, count, limit), left // kind.node_size), -1, -1)
                if reached[place] >> (left - nodes * kind.node_size) & 1
            )
            examples, kind, nodes = max(options, key=lambda option: option[0])
            left -= examples
            if nodes:
                steps.append((kind, nodes))
        return steps

    def _fewest(self, limit: float) -> list[tuple[Kind, int]]:
        """By how many devices each batch takes at least, pool after pool."""
        never = np.iinfo(np.int64).max // 2
        costs = np.full(self._batch_size + 1, never, dtype=np.int64)
        costs[0] = 0
        history = []
        for kinds, count in self._choices:
            new, choice = costs.copy(), np.full((self._batch_size + 1, 2), -1, dtype=np.int64)
            for number, kind in enumerate(kinds):
                for nodes in range(1, self._nodes(kind, count, limit) + 1):
                    shift = nodes * kind.node_size
                    taken = costs[: self._batch_size + 1 - shift] + math.ceil(nodes / kind.fits(limit))
                    better = np.nonzero(taken < new[shift:])[0] + shift
                    new[better] = taken[better - shift]
                    choice[better] = (number, nodes)
            costs = new
            history.append((kinds, choice))
        steps, left = [], self._batch_size
        for kinds, choice in reversed(history):
            number, nodes = (int(each) for each in choice[left])
            if number >= 0:
                steps.append((kinds[number], nodes))
                left -= nodes * kinds[number].node_size
        return steps


def _spread(bits: int, step: int, times: int) -> int:
    """*bits*, and *bits* shifted by 1 to *times* steps, together."""
    have = 1
    while have <= times:
        more = min(have, times + 1 - have)
        bits |= bits << (more * step)
        have += more
    return bits


def alternatives(best: Plan, others: Sequence[Plan]) -> list[tuple[Plan, str]]:
    """Other plans with why they lose, the best of them first."""
    seen, told = {best.shares}, []
    for plan in sorted(others, key=lambda plan: plan.step_seconds):
        if plan.shares not in seen:
            seen.add(plan.shares)
            told.append((plan, _why(plan, best)))
    return told


def _why(plan: Plan, best: Plan) -> str:
    longer = plan.step_seconds - best.step_seconds
    compute, communication = (
        plan.compute_seconds - best.compute_seconds,
        plan.communication_seconds - best.communication_seconds,
    )
    if longer <= 1e-12 * best.step_seconds:
        return f"as fast, with {plan.devices} devices instead of {best.devices}"
    parts = []
    if compute > 0:
        parts.append(f"its slowest device computes {compute:.3g} s longer")
    if communication > 0:
        parts.append(f"communication takes {communication:.3g} s longer")
    if compute < 0:
        parts.append(f"{-compute:.3g} s less computing does not make up for it")
    if communication < 0:
        parts.append(f"{-communication:.3g} s less communication does not make up for it")
    return "; ".join(parts)


def _too_large(workload: Workload, pools: Sequence[Pool], node_size: int) -> str:
    largest = {pool.device_type: workload.profile(pool.device_type).largest for pool in pools}
    fits = ", ".join(f"{size} on {device_type}" for device_type, size in largest.items())
    return (
        f"a virtual node of {node_size} examples fits on no device: the largest that did is {fits}. "
        "Use more virtual nodes, so that each is smaller."
    )


def _unreachable(choices: Sequence[Sequence[Kind]], batch_size: int) -> str:
    sizes = sorted({kind.node_size for kinds in choices for kind in kinds})
    if not sizes:
        return f"a batch of {batch_size} is smaller than every node size that was profiled"
    bits = 1
    for size in sizes:
        bits |= _spread(bits, size, batch_size // size + 1)
    near = [size for size in range(1, 2 * batch_size) if bits >> size & 1]
    below, above = max((n for n in near if n < batch_size), default=0), min(n for n in near if n > batch_size)
    nearest = f"{below} and {above}" if below else str(above)
    return (
        f"no combination of the profiled node sizes ({', '.join(map(str, sizes))}) adds up to a batch of {batch_size}. "
        f"The nearest that work: {nearest}."
    )


def subsets(pools: Sequence[Pool]) -> Iterator[tuple[Pool, ...]]:
    """Groups of device types worth a look beside all of them: every one up to four types, else single ones."""
    for number in range(1, len(pools) if len(pools) <= 4 else 2):
        yield from itertools.combinations(pools, number)


def even(plan: Plan, pools: Sequence[Pool]) -> tuple[Share, ...]:
    """The naive split of a plan's virtual nodes: the same on every device."""
    devices = sum(pool.count for pool in pools)
    each, more = divmod(plan.virtual_nodes, devices)
    shares, size = [], plan.shares[0].node_size
    for pool in pools:
        larger = min(more, pool.count)
        more -= larger
        for count, nodes in ((larger, each + 1), (pool.count - larger, each)):
            if count and nodes:
                shares.append(Share(pool.device_type, count, nodes, size))
    return tuple(shares)


def on_one_machine(workload: Workload, pools: Sequence[Pool]) -> tuple[Workload, tuple[Pool, ...]]:
    """The same where all devices are on the machine at hand, whatever their types: each counts by itself."""
    apart = tuple(replace(pool, machines=(1,) * pool.count) for pool in pools)
    return replace(workload, communication=Communication((), workload.communication.by_devices)), apart
