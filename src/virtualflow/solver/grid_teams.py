"""Teams of lines side by side, as candidates for a grid: data parallelism, one pipeline, several, of mixed types."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from virtualflow.solver.grid_costs import GridCosts
from virtualflow.solver.grid_lines import KnownLines, Line, LinePace

LineTypes = tuple[str, ...]  # of a line's devices
Team = tuple[tuple[LineTypes, int], ...]  # lines by the types of their devices, and how many there are of each
MOST_OPTIONS = {1: 1024, 2: 24, 3: 8}  # of each type, by the number of types that are combined
SMALL = 16  # devices up to which every number of equal lines is tried


def teams(counts: Mapping[str, int], lines: KnownLines, costs: GridCosts, nodes: int) -> list[Team]:
    """Candidates, the most promising first: lines of one type each, of all types together, and of equal mixed lines."""
    found = dict.fromkeys(team for team in _mixed(counts, costs.stages, nodes) if _fits(team, lines, nodes))
    by_type = []
    for name, count in counts.items():
        options = [
            team for team in dict.fromkeys(_of_type(name, count, costs.stages, nodes)) if _fits(team, lines, nodes)
        ]
        options.sort(key=lambda team: estimate(team, lines, costs, nodes))
        best = [next(filter(kind, options), ()) for kind in (is_one_pipeline, is_data_parallel)]
        by_type.append(dict.fromkeys((*options[: MOST_OPTIONS.get(len(counts), 4)], *best, ())))
    for chosen in itertools.product(*by_type):
        team: Team = tuple(itertools.chain.from_iterable(chosen))
        if team and size_of(team) <= nodes:
            found[team] = None
    return sorted(found, key=lambda team: estimate(team, lines, costs, nodes))


def is_data_parallel(team: Team) -> bool:
    return all(len(types) == 1 for types, _ in team)


def is_one_pipeline(team: Team) -> bool:
    return size_of(team) == 1 and len(team[0][0]) > 1


def size_of(team: Team) -> int:
    """How many lines it has."""
    return sum(count for _, count in team)


def line_of(types: LineTypes, team: Team, lines: KnownLines, nodes: int) -> Line | None:
    """The best cut for a line of *team*: where memory counts, it gets its even part of the virtual nodes."""
    return lines.best(types, math.ceil(nodes / size_of(team)))


def estimate(team: Team, lines: KnownLines, costs: GridCosts, nodes: int) -> float:
    """About how long a step takes."""
    paces = _paces(team, lines, nodes)
    rate = sum(count / pace.bottleneck for pace, count in paces)
    ahead = sum(count * (pace.way / pace.bottleneck - 1) for pace, count in paces)
    end = max((nodes + ahead) / rate, min(pace.way for pace, _ in paces))
    return end + reducing(size_of(team), [pace for pace, _ in paces], costs)


def least(team: Team, lines: KnownLines, nodes: int) -> float:
    """No step of this team is shorter."""
    return nodes / sum(count / pace.bottleneck for pace, count in _paces(team, lines, nodes))


def reducing(number: int, paces: Iterable[LinePace], costs: GridCosts) -> float:
    """About how long a number of lines need for the sums of their units, and for the update."""
    known, link = list(paces), costs.link
    update = max(pace.update for pace in known)
    if number == 1:
        return update
    moved = 2 * max(pace.sums_bytes for pace in known) * (number - 1) / number
    return update + 2 * (number - 1) * link.latency_seconds + moved / link.bytes_per_second


def distributed(paces: Sequence[LinePace], nodes: int) -> list[int]:
    """How many virtual nodes each line gets: the next one goes where it would be done first."""
    given = [0] * len(paces)
    heap = [(pace.seconds(1), place) for place, pace in enumerate(paces)]
    heapq.heapify(heap)
    for _ in range(nodes):
        _, place = heap[0]
        given[place] += 1
        heapq.heapreplace(heap, (paces[place].seconds(given[place] + 1), place))
    return given


def _paces(team: Team, lines: KnownLines, nodes: int) -> list[tuple[LinePace, int]]:
    found = []
    for types, count in team:
        line = line_of(types, team, lines, nodes)
        assert line is not None
        found.append((lines.pace(line), count))
    return found


def _fits(team: Team, lines: KnownLines, nodes: int) -> bool:
    return all(line_of(types, team, lines, nodes) is not None for types, _ in team)


def _of_type(name: str, count: int, stages: int, nodes: int) -> Iterator[Team]:
    """Lines of all devices, as even as can be; and equal lines, of all devices or of fewer."""
    for number in range(1, min(count, nodes) + 1):
        short, more = divmod(count, number)
        yield _counted([(name,) * min(short, stages)] * (number - more) + [(name,) * min(short + 1, stages)] * more)
    for depth in range(1, min(count, stages) + 1):
        most = min(count // depth, nodes)
        for number in range(1, most + 1) if count <= SMALL else {1, most}:
            yield (((name,) * depth, number),)


def _mixed(counts: Mapping[str, int], stages: int, nodes: int) -> Iterator[Team]:
    """Equal lines, each with a part of every type's devices; what is left over joins the first ones, or nothing."""
    if len(counts) == 1:
        return
    names = list(counts)
    orders = list(itertools.permutations(names)) if len(names) <= 3 else [tuple(names), tuple(reversed(names))]
    for order, number in itertools.product(orders, range(1, min(max(counts.values()), nodes) + 1)):
        parts = [divmod(counts[name], number) for name in order]
        yield from _whole(order, [[each] * number for each, _ in parts], stages)
        yield from _whole(order, [[each + (place < rest) for place in range(number)] for each, rest in parts], stages)
    if sum(counts.values()) <= SMALL:
        for used in itertools.product(*(range(counts[name] + 1) for name in names)):
            amounts = dict(zip(names, used, strict=True))
            for order in orders:
                yield from _whole(order, [[amounts[name]] for name in order], stages)


def _whole(order: Sequence[str], each: Sequence[Sequence[int]], stages: int) -> Iterator[Team]:
    """The lines with this number of devices of each type, if all have some, and none has more than there are stages."""
    totals = [sum(amounts) for amounts in zip(*each, strict=True)]
    if min(totals) and max(totals) <= stages:
        yield _counted(
            tuple(name for name, amount in zip(order, amounts, strict=True) for _ in range(amount))
            for amounts in zip(*each, strict=True)
        )


def _counted(lines: Iterable[LineTypes]) -> Team:
    return tuple(sorted(Counter(lines).items(), key=lambda entry: (len(entry[0]), entry[0])))
