"""Dividing devices by weight, in whole numbers: each claim gets at least its least and at most its demand."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import lt
from typing import NamedTuple

from virtualflow.errors import ConfigError

DIGITS = 9  # remainders that differ by less are equal: the rest is rounding


Kind = tuple[float, int, int]  # weight, demand and least: claims that are alike in them have equal shares


class Claim(NamedTuple):
    """One job's claim. Of equal ones, the earlier arrival is served first."""

    weight: float
    arrival_seconds: float
    demand: int
    least: int
    kind: Kind
    types: frozenset[str] = frozenset()  # of devices that it can use, where there are several

    @classmethod
    def of(
        cls, weight: float, arrival_seconds: float, demand: int, least: int = 1, types: frozenset[str] = frozenset()
    ) -> Claim:
        return cls(weight, arrival_seconds, demand, least, (weight, demand, least), types)


Split = Callable[[Sequence[Claim], int], list[int]]


def rounding(name: str) -> Split:
    """How shares become whole numbers: ``any`` number, or ``pow2``."""
    if name not in _ROUNDINGS:
        raise ConfigError(f"--round {name}: expected one of {', '.join(_ROUNDINGS)}")
    return _ROUNDINGS[name]


def largest_remainder(claims: Sequence[Claim], devices: int) -> list[int]:
    """Fair shares rounded down, and the devices left over to the largest remainders."""
    # In a large cluster most jobs are like many others, so that almost all is done by kind and not by job.
    kinds = [claim.kind for claim in claims]
    counts = Counter(kinds)
    if sum(demand * count for (_, demand, _), count in counts.items()) <= devices:
        return [claim.demand for claim in claims]
    exact = fair(counts, devices)
    whole = {kind: int(share + 0.5 * 10**-DIGITS) for kind, share in exact.items()}
    left = devices - sum(whole[kind] * count for kind, count in counts.items())
    order: dict[tuple[float, float], set[Kind]] = {}  # by remainder and weight
    for kind, share in exact.items():
        if share > whole[kind]:
            order.setdefault((-round(share - whole[kind], DIGITS), -kind[0]), set()).add(kind)
    last: set[Kind] = set()  # those of which only the first get one more
    for key in sorted(order):
        number = sum(counts[kind] for kind in order[key])
        if number > left:
            last = order[key]
            break
        whole.update((kind, whole[kind] + 1) for kind in order[key])
        left -= number
    result = list(map(whole.__getitem__, kinds))
    if left:
        places = [place for place, kind in enumerate(kinds) if kind in last]
        places.sort(key=lambda place: claims[place].arrival_seconds)
        for place in places[:left]:
            result[place] += 1
    return result


def fair(kinds: Mapping[Kind, int], devices: int) -> dict[Kind, float]:
    """The shares ``min(demand, max(least, level x weight))`` at the level where they add up to all devices.

    *kinds* counts the claims by weight, demand and least.
    """
    found = level(kinds, devices)
    return {kind: min(float(kind[1]), max(float(kind[2]), found * kind[0])) for kind in kinds}


def level(kinds: Mapping[Kind, int], devices: int) -> float:
    """What a weight of 1 is worth if claims of these kinds share so many devices."""
    # The sum grows with the level, at a slope that changes where a claim leaves its least and meets its demand.
    bends: list[tuple[float, float]] = []
    for (weight, demand, least), count in kinds.items():
        if demand > least:
            bends += [(least / weight, weight * count), (demand / weight, -weight * count)]
    bends.sort()
    total, slope, found = float(sum(least * count for (_, _, least), count in kinds.items())), 0.0, 0.0
    for at, change in bends:
        if total + slope * (at - found) >= devices:
            break
        total += slope * (at - found)
        found, slope = at, slope + change
    if total < devices and slope > 0:
        found += (devices - total) / slope
    return found


def powers_of_two(claims: Sequence[Claim], devices: int) -> list[int]:
    """The paper's author's rule: powers of two, at least 1, unless the demand itself can be met.

    If that is too many, the lowest priorities are halved first; if devices are left, the highest are doubled first.
    """
    result = [0] * len(claims)
    open_places, left = list(range(len(claims))), devices
    while open_places:
        weights = sum(claims[place].weight for place in open_places)
        given = {
            place: max(claims[place].least, _power_below(left * claims[place].weight / weights))
            for place in open_places
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
        while total > devices and given[place] > claims[place].least:
            half = max(claims[place].least, given[place] // 2)
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
        if claim.weight < highest and after[place] > claim.least and after[place] > before[place]
    ]
    winners.sort(key=lambda place: claims[place].weight)
    winners.reverse()  # taken from the end: the lowest weight first, and of equal ones the first
    for loser in losers:
        while winners and after[loser] < before[loser] and claims[winners[-1]].weight < claims[loser].weight:
            winner = winners[-1]
            spare = after[winner] - max(claims[winner].least, before[winner])
            moved = min(before[loser] - after[loser], spare)
            after[loser] += moved
            after[winner] -= moved
            if moved == spare:
                winners.pop()


_ROUNDINGS: dict[str, Split] = {"any": largest_remainder, "pow2": powers_of_two}
