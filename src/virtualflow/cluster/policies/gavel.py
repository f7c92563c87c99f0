"""Gavel (Narayanan et al., OSDI '20): shares of time from a program, carried out in rounds.

Each policy of the family has its own program, which finds for each job and device type the share of time that the job
should spend on it. Rounds come near those shares: in each one, the jobs that are furthest behind on a type run on it.

With ``--compat gavel`` the rounds are those of Gavel's own simulator: the program is solved again only if jobs came or
ended *and* 1920 s have passed, so that a new job may wait; a round also ends when all of its jobs have. ``--compat
paper`` is for the policies of ``las.py``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from virtualflow.cluster.job import Job, ScheduledJob
from virtualflow.cluster.linear_programs import Floats, LinearProgram
from virtualflow.cluster.policies.base import NOTHING, Decision, Grant, Options, Policy
from virtualflow.cluster.snapshot import Snapshot
from virtualflow.cluster.throughput.table import GAVEL, GAVEL_ROUND_SECONDS
from virtualflow.errors import ConfigError

GATE_SECONDS = 1920.0
PAPER = "paper"  # the simulation of VirtualFlow's paper
FILLED_FIRST = ("v100", "p100", "k80")  # in Gavel's simulator


@dataclass(frozen=True, slots=True)
class Column:
    """A way to run a job: *counts* devices by type, and the speed on them."""

    counts: Mapping[str, int]
    steps_per_second: float
    worth: float  # in the program: speed times devices, so that a job is not rewarded for a large demand

    @classmethod
    def of(cls, device_type: str, count: int, steps_per_second: float) -> Column:
        return cls({device_type: count}, steps_per_second, count * steps_per_second)

    @property
    def devices(self) -> int:
        return sum(self.counts.values())


@dataclass(slots=True, eq=False)
class Entry:
    """What the policy knows of a job. Lists go by column."""

    state: ScheduledJob
    columns: Sequence[Column]
    values: Floats  # in the program
    usage: Floats  # devices by type, in the cluster's order
    half_round: float
    solved: bool = False  # whether the program has seen it
    shares: list[float] = field(init=False)
    seconds: list[float] = field(init=False)  # in the column since the program was solved, and half a round
    deficits: list[float] = field(init=False)  # seconds that it should have had, and had not, before that

    def __post_init__(self) -> None:
        self.shares = [0.0] * len(self.columns)
        self.seconds = [self.half_round] * len(self.columns)
        self.deficits = [0.0] * len(self.columns)

    def take_over(self, before: Entry) -> None:
        """The same job, which asks for something else now: what it had and what it is owed still counts."""
        if len(before.columns) == len(self.columns):
            self.solved, self.shares = before.solved, before.shares
            self.seconds, self.deficits = before.seconds, before.deficits

    def renew(self, shares: Sequence[float], passed: float) -> None:
        """Take on new shares, and remember how far the old ones were from being carried out."""
        for place, share in enumerate(self.shares):
            self.deficits[place] += share * passed - (self.seconds[place] - self.half_round)
            self.seconds[place] = self.half_round
        self.shares, self.solved = list(shares), True


class Gavel(Policy):
    """Rounds. What the shares are is up to the subclass."""

    restarts = True  # its jobs change devices through a checkpoint

    def __init__(self, options: Options = Options()) -> None:  # noqa: B008, frozen
        super().__init__(options)
        if options.compat not in (None, GAVEL, PAPER):
            raise ConfigError(f"--compat {options.compat}: {self.name} knows {GAVEL} and {PAPER}")
        self._compat = options.compat == GAVEL
        if not options.round_seconds > 0:
            raise ConfigError(f"--round-seconds {options.round_seconds:g}: a round takes some time, such as 360")
        self.round_seconds = None if self._compat else options.round_seconds
        self.rounds = self.solved = 0  # so far
        self._entries: dict[str, Entry] = {}
        self._capacity: dict[str, int] = {}
        self._order: list[str] = []
        self._changed = False
        self._stale: set[str] = set()  # entries of jobs that have changed since
        self._resized = False  # whether the cluster has changed since the program was solved
        self._solved_seconds: float | None = None
        self._began = 0.0
        self._ran: dict[str, int] = {}  # the column of each job of the last round

    def forget(self, before: Job) -> None:
        self._stale.add(before.id)

    @abstractmethod
    def shares(self, entries: Sequence[Entry], snapshot: Snapshot) -> Floats:
        """The share of time of each column, job after job."""

    def columns(self, state: ScheduledJob, snapshot: Snapshot) -> list[Column]:
        """The ways to run a job: on each type alone, with its demand or with all devices of the type."""
        columns = []
        for device_type in self._order:
            count = min(state.job.demand, self._capacity[device_type])
            speed = snapshot.steps_per_second(state.job, device_type, count) if count else 0.0
            columns.append(Column.of(device_type, count, speed))
        return columns

    def values(self, job: Job, columns: Sequence[Column], snapshot: Snapshot) -> list[float]:
        """What each of a job's columns is worth to it in the program: speeds, unless the subclass knows better."""
        return [column.steps_per_second for column in columns]

    def program(self, entries: Sequence[Entry], snapshot: Snapshot) -> LinearProgram:
        """The program of some jobs' columns."""
        return LinearProgram(
            jobs=len(entries),
            job=np.repeat(np.arange(len(entries)), [len(entry.columns) for entry in entries]),
            value=np.concatenate([entry.values for entry in entries]),
            usage=np.concatenate([entry.usage for entry in entries]),
            capacity=np.array(list(snapshot.capacity.values()), float),
        )

    def allocate(self, snapshot: Snapshot) -> Decision:
        self._changed |= snapshot.jobs_changed or bool(self._stale)
        if self._compat and snapshot.running and snapshot.now < self._began + GAVEL_ROUND_SECONDS:
            return Decision()
        self._book(snapshot.now)
        self._meet(snapshot)
        if self._changed and self._gate_is_open(snapshot):
            self._solve(snapshot)
        self.rounds += 1
        self._began = snapshot.now
        self._ran = self.fill(snapshot)
        return Decision(self._grants(snapshot), self._wake(snapshot))

    def fill(self, snapshot: Snapshot) -> dict[str, int]:
        """The column of each job of this round."""
        chosen: dict[str, int] = {}
        self.fill_types(chosen, dict(self._capacity))
        return self.seen_by_the_program(chosen)

    def seen_by_the_program(self, chosen: Mapping[str, int]) -> dict[str, int]:
        """In Gavel's simulator, a job that the program has not seen yet is given workers but does not run on them."""
        return {name: place for name, place in chosen.items() if self._entries[name].solved}

    def fill_types(self, chosen: dict[str, int], left: dict[str, int]) -> None:
        """Type after type, the jobs furthest behind, as far as devices are left."""
        entries = list(self._entries.values())
        for place, device_type in enumerate(self._order):
            free = left[device_type]
            rows = [
                (entry.shares[place] / entry.seconds[place], entry.deficits[place], entry.shares[place], -number)
                for number, entry in enumerate(entries)
                if entry.state.id not in chosen and entry.columns[place].steps_per_second
            ]
            rows.sort(reverse=True)
            for *_, minus in rows:
                entry = entries[-minus]
                count = entry.columns[place].counts[device_type]
                if count <= free:
                    free -= count
                    chosen[entry.state.id] = place
                    if not free:
                        break
            left[device_type] = free

    def counts_of(self, name: str) -> Mapping[str, int]:
        """The devices of a job of this round."""
        return self._entries[name].columns[self._ran[name]].counts

    def _book(self, now: float) -> None:
        for name, place in self._ran.items():
            if name in self._entries:
                self._entries[name].seconds[place] += now - self._began

    def _meet(self, snapshot: Snapshot) -> None:
        """Forget jobs that ended, and note those that came or changed; all of them if devices did."""
        if dict(snapshot.capacity) != self._capacity:
            self._capacity = dict(snapshot.capacity)
            self._order = _in_order(self._capacity) if self._compat else list(self._capacity)
            self._stale.update(self._entries)
            self._changed = self._resized = True
        if self._changed:
            present = {state.id: state for state in snapshot.jobs()}
            self._entries = {name: entry for name, entry in self._entries.items() if name in present}
            for name, state in present.items():
                before = self._entries.get(name)
                if before is None or name in self._stale:
                    self._entries[name] = entry = self._entry(state, snapshot)
                    if before is not None:
                        entry.take_over(before)
            self._stale.clear()

    def _entry(self, state: ScheduledJob, snapshot: Snapshot) -> Entry:
        columns = self.columns(state, snapshot)
        values = np.array(self.values(state.job, columns, snapshot))
        for place, column in enumerate(columns):
            if column.devices < state.job.min:  # too few to run on
                columns[place], values[place] = replace(column, steps_per_second=0.0, worth=0.0), 0.0
        usage = np.array([[float(column.counts.get(name, 0)) for name in self._capacity] for column in columns])
        return Entry(state, columns, values, usage, (self.round_seconds or GAVEL_ROUND_SECONDS) / 2)

    def _gate_is_open(self, snapshot: Snapshot) -> bool:
        if not self._compat or self._resized or not self._solved_seconds:  # Gavel takes a last time of 0 for none
            return True
        # The same sum as in `_wake`: a difference may be rounded to less, and then nobody ever runs.
        return snapshot.now >= self._solved_seconds + GATE_SECONDS

    def _solve(self, snapshot: Snapshot) -> None:
        self._changed = self._resized = False
        passed = snapshot.now - (self._solved_seconds or 0.0)
        self._solved_seconds = snapshot.now
        entries = []
        for entry in self._entries.values():
            if any(column.steps_per_second for column in entry.columns):
                entries.append(entry)
            else:  # all that it can use is lost, and nobody owes it anything until that is back
                entry.renew([0.0] * len(entry.columns), passed)
        if entries:
            self.solved += 1
            shares = iter(self.shares(entries, snapshot).tolist())
            for entry in entries:
                entry.renew([next(shares) for _ in entry.columns], passed)

    def _grants(self, snapshot: Snapshot) -> dict[str, Grant]:
        """What changes; jobs with many devices choose first."""
        grants = {name: NOTHING for name in snapshot.running if name not in self._ran}
        changed = []
        for name in self._ran:
            counts = self.counts_of(name)
            if self._entries[name].state.counts != counts:
                changed.append((name, counts))
        changed.sort(key=lambda change: -sum(change[1].values()))
        return grants | {name: Grant(counts) for name, counts in changed}

    def _wake(self, snapshot: Snapshot) -> float | None:
        if not self._compat:
            return None  # rounds come by themselves
        if self._ran:
            return snapshot.now + GAVEL_ROUND_SECONDS
        # Nothing runs. Jobs that the program has not seen wait for the gate; the others wait for another event.
        return None if not self._changed or self._solved_seconds is None else self._solved_seconds + GATE_SECONDS


def _in_order(capacity: Mapping[str, int]) -> list[str]:
    known = [name for first in FILLED_FIRST for name in capacity if name.lower() == first]
    return known + [name for name in capacity if name not in known]
