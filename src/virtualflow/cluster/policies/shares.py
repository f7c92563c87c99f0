"""Dividing devices by weight, in whole numbers: each claim gets at least its minimum and at most its demand."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import lt
from typing import NamedTuple

from virtualflow.errors import ConfigError

DIGITS = 9  # remainders that differ by less are equal: the rest is rounding


Curve = tuple[tuple[int, float], ...]  # numbers of devices that are worth having, and the speed on them
ClaimShape = tuple[float, int, int]  # weight, demand and minimum: claims that are alike in them have equal shares


class Claim(NamedTuple):
    """One job's claim. Of equal ones, the earlier arrival is served first."""

    weight: float
    arrival_seconds: float
    demand: int
    min: int
    shape: ClaimShape
    types: frozenset[str] = frozenset()  # of devices that it can use, where there are several
    curve: Curve = ()  # where shares are to be of use

    @classmethod
    def of(
        cls,
        weight: float,
        arrival_seconds: float,
        demand: int,
        min: int = 1,
        types: frozenset[str] = frozenset(),
        curve: Curve = (),
    ) -> Claim:
        return cls(weight, arrival_seconds, demand, min, (weight, demand, min), types, curve)


Split = Callable[[Sequence[Claim], int], list[int]]


def rounding(name: str) -> Split:
    """How shares become whole numbers: ``any`` number, or ``pow2``."""
    if name not in _ROUNDINGS:
        raise ConfigError(f"--round {name}: expected one of {', '.join(_ROUNDINGS)}")
    return _ROUNDINGS[name]


def largest_remainder(claims: Sequence[Claim], devices: int) -> list[int]:
    """Fair shares rounded down, and the devices left over to the largest remainders."""
    # In a large cluster most jobs are like many others, so that almost all is done by shape and not by job.
    shapes = [claim.shape for claim in claims]
    counts = Counter(shapes)
    if sum(demand * count for (_, demand, _), count in counts.items()) <= devices:
        return [claim.demand for claim in claims]
    exact = fair(counts, devices)
    whole = {shape: int(share + 0.5 * 10**-DIGITS) for shape, share in exact.items()}
    left = devices - sum(whole[shape] * count for shape, count in counts.items())
    order: dict[tuple[float, float], set[ClaimShape]] = {}  # by remainder and weight
    for shape, share in exact.items():
        if share > whole[shape]:
            order.setdefault((-round(share - whole[shape], DIGITS), -shape[0]), set()).add(shape)
    last: set[ClaimShape] = set()  # those of which only the first get one more
    for key in sorted(order):
        number = sum(counts[shape] for shape in order[key])
        if number > left:
            last = order[key]
            break
        whole.update((shape, whole[shape] + 1) for shape in order[key])
        left -= number
    result = list(map(whole.__getitem__, shapes))
    if left:
        places = [place for place, shape in enumerate(shapes) if shape in last]
        places.sort(key=lambda place: claims[place].arrival_seconds)
        for place in places[:left]:
            result[place] += 1
    return result


def fair(shapes: Mapping[ClaimShape, int], devices: int) -> dict[ClaimShape, float]:
    """The shares ``min(demand, max(minimum, level x weight))`` at the level where they add up to all devices.

    *shapes* counts the claims by weight, demand and minimum.
    """
    fair_level = level(shapes, devices)
    return {shape: min(float(shape[1]), max(float(shape[2]), fair_level * shape[0])) for shape in shapes}


def level(shapes: Mapping[ClaimShape, int], devices: int) -> float:
    """The number of devices that a weight of 1 is worth, if claims of these shapes share *devices*."""
    # The sum grows with the level, at a slope that changes where a claim leaves its minimum and meets its demand.
    bends: list[tuple[float, float]] = []
    for (weight, demand, minimum), count in shapes.items():
        if demand > minimum:
            bends += [(minimum / weight, weight * count), (demand / weight, -weight * count)]
    bends.sort()
    total, slope, reached = float(sum(minimum * count for (_, _, minimum), count in shapes.items())), 0.0, 0.0
    for at, change in bends:
        if total + slope * (at - reached) >= devices:
            break
        total += slope * (at - reached)
        reached, slope = at, slope + change
    if total < devices and slope > 0:
        reached += (devices - total) / slope
    return reached


def powers_of_two(claims: Sequence[Claim], devices: int) -> list[int]:
    """The paper's author's rule: powers of two, at least 1, unless the demand itself can be met.

    If that is too many, the lowest priorities are halved first; if devices are left, the highest are doubled first.
    """
    result = [0] * len(claims)
    open_places, left = list(range(len(claims))), devices
    while open_places:
        weights = sum(claims[place].weight for place in open_places)
        given = {
            place: max(claims[place].min, _power_below(left * claims[place].weight / weights)) for place in open_places
        }
        _halve(given, claims, left)
        met = [place for place in open_places if given[place] >= claims[place].demand]
        for place in met or open_places:
            result[place] = min(given[place], claims[place].demand)
            left -= result[place]
        open_places = [place for place in open_places if place not in set(met)] if met else []
    for place in sorted(range(len(claims)), key=lambda place: -claims[place].weight):
        while left >= result[place] and 2 * result[place] <= claims[place].demand:
            left -= result[place]
            result[place] *= 2
    return result


def _power_below(share: float) -> int:
    return int(2 ** math.floor(math.log2(max(1.0, share))))


def _halve(given: dict[int, int], claims: Sequence[Claim], devices: int) -> None:
    total = sum(given.values())
    for place in sorted(given, key=lambda place: claims[place].weight):
        while total > devices and given[place] > claims[place].min:
            half = max(claims[place].min, given[place] // 2)
            total -= given[place] - half
            given[place] = half


def protect(claims: Sequence[Claim], before: Sequence[int], after: list[int]) -> None:
    """Where a claim of higher weight shrinks while one of lower weight grows, take that back as far as it goes.

    Shares never make this happen, but rounding them does, and so does a job that took what the others left over.
    """
    if not any(map(lt, after, before)):
        return
    losers = [place for place in range(len(claims)) if after[place] < before[place]]
    losers.sort(key=lambda place: -claims[place].weight)
    highest = claims[losers[0]].weight
    winners = [
        place
        for place, claim in enumerate(claims)
        if claim.weight < highest and after[place] > claim.min and after[place] > before[place]
    ]
    winners.sort(key=lambda place: claims[place].weight)
    winners.reverse()  # taken from the end: the lowest weight first, and of equal ones the first
    for loser in losers:
        while winners and after[loser] < before[loser] and claims[winners[-1]].weight < claims[loser].weight:
            winner = winners[-1]
            spare = after[winner] - max(claims[winner].min, before[winner])
            moved = min(before[loser] - after[loser], spare)
            after[loser] += moved
            after[winner] -= moved
            if moved == spare:
                winners.pop()


_ROUNDINGS: dict[str, Split] = {"any": largest_remainder, "pow2": powers_of_two}
