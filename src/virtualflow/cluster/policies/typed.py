"""Shares and places where devices are of several types, and some jobs can use only some of them.

Jobs that can use only some types compete for those, however many others are idle. So the claims are divided into
*groups* that share certain types among themselves: first those confined to the types where the smallest share is
lowest, then, of what is left, the next. Where everybody can use every type, there is one group.

Who gets how many then has to find places. A job keeps those it has as far as it can; it moves to another type for one
of no lower weight that could not have its share otherwise, and never for one of lower weight.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter

from virtualflow.cluster.policies import shares
from virtualflow.cluster.policies.shares import Claim

Counts = dict[str, int]  # devices by type
Types = frozenset[str]
_TYPES, _MIN = attrgetter("types"), attrgetter("min")


def is_plain(claims: Sequence[Claim], capacity: Mapping[str, int]) -> bool:
    """Whether everybody can use every type, so that devices need only be counted."""
    # Thousands of claims have a handful of sets among them: this asks for each set and not for each claim.
    return len(capacity) == 1 or all(len(types) == len(capacity) for types in set(map(_TYPES, claims)))


def can_all_live(claims: Sequence[Claim], capacity: Mapping[str, int], *, plain: bool) -> bool:
    """Whether each claim can have its minimum, on devices that it can use; all on every type if it is *plain*."""
    if plain:
        return bool(sum(map(_MIN, claims)) <= sum(capacity.values()))
    return all(
        sum(claim.min for claim in claims if claim.types <= types) <= sum(capacity[name] for name in types)
        for types in _unions(claim.types for claim in claims)
    )


def groups(claims: Sequence[Claim], capacity: Mapping[str, int]) -> Iterator[tuple[list[int], int]]:
    """The places of claims that share devices among themselves, and how many those are."""
    open_places, left = list(range(len(claims))), frozenset(capacity)
    while open_places:
        best, lowest = frozenset[str](), math.inf
        # The largest first: one that is no scarcer than all together needs no group of its own.
        for types in _unions(claims[place].types & left for place in open_places):
            confined = [claims[place] for place in open_places if claims[place].types & left <= types]
            level = _level(confined, sum(capacity[name] for name in types))
            if not best or level < lowest * (1 - 1e-9):
                best, lowest = types, level
        confined_places = [place for place in open_places if claims[place].types & left <= best]
        yield confined_places, sum(capacity[name] for name in best)
        open_places = [place for place in open_places if place not in set(confined_places)]
        left -= best


def _level(claims: Sequence[Claim], devices: int) -> float:
    """The level at which these claims share *devices* by weight; infinite if there are enough for all."""
    if sum(claim.demand for claim in claims) <= devices:
        return math.inf
    return shares.level(Counter(claim.shape for claim in claims), devices)


def _unions(some: Iterator[Types]) -> list[Types]:
    """All sets of types that are made up of these, the largest first."""
    unions: set[Types] = set()
    for types in dict.fromkeys(some):
        unions |= {types | other for other in unions} | {types}
    return sorted(unions, key=lambda types: (-len(types), sorted(types)))


class Places:
    """Devices by type for each claim, found by moving as few as can be."""

    def __init__(self, claims: Sequence[Claim], have: Sequence[Mapping[str, int]], capacity: Mapping[str, int]) -> None:
        self._claims = claims
        self._left = dict(capacity)
        self.given: list[Counts] = [{} for _ in claims]
        self._order = sorted(
            range(len(claims)), key=lambda place: (-claims[place].weight, claims[place].arrival_seconds)
        )
        self._have = have

    def find(self, wanted: Sequence[int], *, fill: bool) -> list[Counts]:
        """As many as are wanted, the highest weights first; with *fill*, what is left too, up to the demands."""
        for place, claim in enumerate(self._claims):
            self._keep(place, claim, wanted[place])
        for place in self._order:
            self._add(place, wanted[place])
        for place in self._order:
            if sum(self.given[place].values()) < self._claims[place].min:
                for name, count in self.given[place].items():
                    self._left[name] += count
                self.given[place] = {}
        for place in self._order if fill else ():
            if self.given[place]:
                self._add(place, self._claims[place].demand, from_others=False)
        return [dict(self._in_order(counts)) for counts in self.given]

    def _in_order(self, counts: Counts) -> list[tuple[str, int]]:
        return [(name, counts[name]) for name in self._left if counts.get(name)]

    def _keep(self, place: int, claim: Claim, wanted: int) -> None:
        """What it has, up to what it is to have; the types that are given out first are kept first."""
        for name in self._left:
            count = min(self._have[place].get(name, 0) if name in claim.types else 0, wanted, self._left[name])
            if count:
                self.given[place][name] = count
                self._left[name] -= count
                wanted -= count

    def _add(self, place: int, wanted: int, *, from_others: bool = True) -> None:
        while (more := wanted - sum(self.given[place].values())) > 0:
            steps = self._reach(place)
            end = next((name for name in steps if self._left[name]), None)
            if end is not None:
                amount = min(more, self._left[end])
                self._left[end] -= self._move(place, end, steps, amount)
                continue
            victim = self._victim(place, steps) if from_others else None
            if victim is None:
                return
            loser, name = victim
            self.given[loser][name] -= self._move(place, name, steps, 1)

    def _reach(self, place: int) -> dict[str, tuple[str, int] | None]:
        """Types that a job can get devices of, the nearest first: at once, or if others move from there to the next."""
        mine, own = self._claims[place], self.given[place]
        first = sorted((name for name in self._left if name in mine.types), key=lambda name: not own.get(name))
        steps: dict[str, tuple[str, int] | None] = dict.fromkeys(first)
        frontier = list(first)
        while frontier and not any(self._left[name] for name in steps):
            nearest, frontier = frontier, []
            for name in nearest:
                for other in reversed(self._order):  # the lowest weight moves first
                    if other != place and self.given[other].get(name) and self._claims[other].weight <= mine.weight:
                        for target in self._left:
                            if target in self._claims[other].types and target not in steps:
                                steps[target] = (name, other)
                                frontier.append(target)
        return steps

    def _move(self, place: int, end: str, steps: Mapping[str, tuple[str, int] | None], amount: int) -> int:
        """Give *place* devices by moving others, one type on, up to *end*; how many that were."""
        moves: list[tuple[str, str, int]] = []
        while (step := steps[end]) is not None:
            moves.append((step[0], end, step[1]))
            amount = min(amount, self.given[step[1]][step[0]])
            end = step[0]
        for old, new, other in moves:
            self.given[other][old] -= amount
            self.given[other][new] = self.given[other].get(new, 0) + amount
        self.given[place][end] = self.given[place].get(end, 0) + amount
        return amount

    def _victim(self, place: int, reachable: Mapping[str, object]) -> tuple[int, str] | None:
        """A job of lower weight that has more than its minimum, and the type of which it gives one up."""
        for other in reversed(self._order):
            if self._claims[other].weight >= self._claims[place].weight:
                return None
            if sum(self.given[other].values()) > self._claims[other].min:
                for name in reachable:
                    if self.given[other].get(name):
                        return other, name
        return None
