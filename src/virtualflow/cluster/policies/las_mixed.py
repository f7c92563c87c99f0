"""Gavel with mixed allocations.

The paper's extension: after each round's greedy fill, device types that are left over are offered to the jobs that run,
and the solver says what they gain. Beyond the paper: mixed allocations are columns of the program itself, so that it
plans with them instead of waiting for something to be left.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from virtualflow.cluster.job import Job, ScheduledJob
from virtualflow.cluster.policies.base import Options
from virtualflow.cluster.policies.gavel import Column
from virtualflow.cluster.policies.las import Las
from virtualflow.cluster.snapshot import Snapshot

WORTH_IT = 1.01  # a smaller gain in speed is not worth a device of another type
MIN_SHARE = 1e-6  # of time; less is rounding of the program's


class LasMixed(Las):
    """The paper's extension."""

    name = "las-mixed"
    restarts = False  # jobs are elastic: that is what makes mixing possible

    def __init__(self, options: Options = Options()) -> None:  # noqa: B008, frozen
        super().__init__(options)
        self._more: dict[str, Column] = {}  # what grew by what was left over

    def fill(self, snapshot: Snapshot) -> dict[str, int]:
        chosen: dict[str, int] = {}
        left = dict(self._capacity)
        self.fill_mixed(chosen, left)
        self.fill_types(chosen, left)
        chosen = self.seen_by_the_program(chosen)
        self._more = {}
        while any(left.values()) and self._offer(chosen, left, snapshot):
            pass
        return chosen

    def fill_mixed(self, chosen: dict[str, int], left: dict[str, int]) -> None:
        """What comes before the fill by types: nothing, where only leftovers are mixed in."""

    def counts_of(self, name: str) -> Mapping[str, int]:
        return self._more[name].counts if name in self._more else super().counts_of(name)

    def _offer(self, chosen: Mapping[str, int], left: dict[str, int], snapshot: Snapshot) -> bool:
        """Give what is left to the job whose speed grows the most by it."""
        best, most = None, WORTH_IT
        for name, place in chosen.items():
            job = self._entries[name].state.job
            before = self._more.get(name) or self._entries[name].columns[place]
            offer = {
                device_type: count
                for device_type in self._order
                if (count := before.counts.get(device_type, 0) + left[device_type])
                and snapshot.throughput.usable(job, device_type)
            }
            if offer == before.counts:
                continue
            after = _on(job, offer, snapshot)
            if after.devices >= job.min and after.steps_per_second > most * before.steps_per_second:
                best, most = (name, before, after), after.steps_per_second / before.steps_per_second
        if best is None:
            return False
        name, before, after = best
        for device_type in self._order:
            left[device_type] += before.counts.get(device_type, 0) - after.counts.get(device_type, 0)
        self._more[name] = after
        return True


class LasMixedColumns(LasMixed):
    """Mixtures in the program too."""

    name = "las-mixed-columns"

    def columns(self, state: ScheduledJob, snapshot: Snapshot) -> list[Column]:
        alone = super().columns(state, snapshot)
        usable = [column for column in alone if column.steps_per_second]
        mixed = []
        for number in range(2, len(usable) + 1):
            for some in itertools.combinations(usable, number):
                offer = {name: count for column in some for name, count in column.counts.items()}
                column = _on(state.job, offer, snapshot)
                best = max(way.steps_per_second for way in some)
                if len(column.counts) == number and column.steps_per_second > WORTH_IT * best:
                    mixed.append(column)
        return alone + mixed

    def fill_mixed(self, chosen: dict[str, int], left: dict[str, int]) -> None:
        """Whatever the program gives time to, furthest behind first."""
        entries = list(self._entries.values())
        rows = [
            (entry.shares[place] / entry.seconds[place], entry.deficits[place], -number, -place)
            for number, entry in enumerate(entries)
            for place in range(len(entry.columns))
            if entry.shares[place] > MIN_SHARE
        ]
        for *_, number, place in sorted(rows, reverse=True):
            entry = entries[-number]
            counts = entry.columns[-place].counts
            if entry.state.id not in chosen and all(left[name] >= count for name, count in counts.items()):
                chosen[entry.state.id] = -place
                for name, count in counts.items():
                    left[name] -= count


def _on(job: Job, offer: Mapping[str, int], snapshot: Snapshot) -> Column:
    """How a job would run on an offer, with the devices that it really takes.

    A mixture is worth what its parts are, times its speed against the sum of theirs: to the program, its one advantage
    is that a job can have both at the same time.
    """
    speed = snapshot.speed(job, offer)
    counts = dict(speed.used) or _at_most(job.demand, offer)
    parts = [(count, snapshot.steps_per_second(job, device_type, count)) for device_type, count in counts.items()]
    total = sum(part for _, part in parts)
    mean = sum(count * part for count, part in parts) / total if total else 0.0
    return Column(counts, speed.steps_per_second, mean * speed.steps_per_second)


def _at_most(demand: int, offer: Mapping[str, int]) -> dict[str, int]:
    """What a job takes of an offer if nobody knows better: no more than it asked for."""
    taken: dict[str, int] = {}
    for device_type, count in offer.items():
        if part := min(count, demand - sum(taken.values())):
            taken[device_type] = part
    return taken
