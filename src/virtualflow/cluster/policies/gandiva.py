"""Gandiva (Xiao et al., OSDI '18): when there are more jobs than devices, they take turns, or share.

A job runs on its full demand. While everyone fits, that is all. Under overload

* jobs take turns (*time slicing*): a ring, a minute each, suspended and resumed;
* jobs are put on the same device (*packing*). Each has run alone before, and two that do not fit into the memory
  together are not tried. After one turn it is seen whether the two do more together than by turns: the sum of what is
  left of their speeds, against 1. If so, the pair stays and takes its turns as one; if not, it is undone, and others
  are tried. What was seen of two workloads holds for all jobs of theirs.

When devices become free, waiting jobs start on them, and then packed jobs move out. A job that has not come to its
first step within its turn keeps it: where resuming takes longer than a turn, nothing would get done otherwise.

Gavel's account of Gandiva (its ``policies/gandiva.py``) has the same two rules for packing: only under overload, and
only while the sum of speeds against those alone is not below 1.

Adapted: Gandiva packs by GPU utilisation, lowest first. We know of none: pairs that proved themselves come first (the
best of them first), then untried ones in the order of the ring. Only jobs of one device are packed, since that is what
was measured. Left out: growing jobs onto idle devices, since those of a trace state their full demand, and moving jobs
for the sake of locality.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from virtualflow.cluster.job import ScheduledJob
from virtualflow.cluster.policies.base import Decision, Options, Policy
from virtualflow.cluster.policies.guests import grants_with_guests
from virtualflow.cluster.snapshot import Snapshot

TURN_SECONDS = 60.0
BY_TURNS = 1.0  # what two jobs do in all if they take turns on a device
UNTRIED = BY_TURNS + 1e-9  # worth a try, after all that is known to be better
SharedWorkloads = tuple[str, frozenset[str]]  # a device type and the workloads that shared a device of it


class Gandiva(Policy):
    """Time slicing and packing."""

    name = "gandiva"
    needs_progress = True
    restarts = True

    def __init__(self, options: Options = Options()) -> None:  # noqa: B008, frozen
        super().__init__(options)
        self._ring: dict[str, None] = {}  # jobs, the next to have a turn first
        self._packed: dict[str, str] = {}  # host -> the job packed with it
        self._seen: dict[SharedWorkloads, float] = {}  # what two did together, in all
        self._trials: set[str] = set()  # packed jobs of which that is not known yet
        self._began = 0.0  # the turn
        self._steps: dict[str, float] = {}  # of running jobs, when they got their devices
        self._asked = -1.0

    def allocate(self, snapshot: Snapshot) -> Decision:
        states = {state.id: state for state in snapshot.jobs()}
        self._meet(states)
        runs = {name: dict(state.counts) for name, state in states.items() if state.devices and not state.host}
        free = dict(snapshot.free)
        started = self._run([name for name in self._units() if name not in runs], runs, states, free, snapshot)
        overload = any(name not in runs for name in self._units())
        if (overload or self._trials) and snapshot.now >= self._began + TURN_SECONDS:
            runs = self._next_turn(states, snapshot)
        else:
            self._to_the_end(started)
            if not overload:
                self._move_out(runs, states, free, snapshot)
                self._complete(runs, states, free, snapshot)
        packed = {other: (host, runs[host]) for host, other in self._packed.items() if host in runs}
        grants = grants_with_guests(runs, packed, states)
        for name in grants:
            self._steps[name] = states[name].steps_done
        return Decision(grants, self._wake(runs))

    def _meet(self, states: dict[str, ScheduledJob]) -> None:
        """Forget jobs that ended; new ones come after those that wait and before those that run."""
        names = [name for name in (*self._ring, *states) if name in states]
        self._ring = dict.fromkeys(sorted(names, key=lambda name: bool(states[name].devices)))
        self._packed = {
            host: other
            for host, other in self._packed.items()
            if host in states and other in states and states[host].job.demand == states[other].job.demand == 1
        }
        self._trials &= set(self._packed.values())
        self._steps = {name: steps for name, steps in self._steps.items() if name in states}

    def _next_turn(self, states: dict[str, ScheduledJob], snapshot: Snapshot) -> dict[str, dict[str, int]]:
        """Whoever is next in the ring runs; of those who do not, some are packed with those who do."""
        self._judge(states, snapshot)
        self._began = snapshot.now
        runs: dict[str, dict[str, int]] = {}
        idle = [name for name in self._units() if self._is_idle(states[name])]
        others = [name for name in self._units() if name not in idle]
        self._run(idle + others, runs, states, dict(snapshot.capacity), snapshot)
        self._to_the_end(runs)
        self._pack(runs, states, snapshot)
        return runs

    def _move_out(
        self, runs: dict[str, dict[str, int]], states: dict[str, ScheduledJob], free: dict[str, int], snapshot: Snapshot
    ) -> None:
        """Packed jobs get devices of their own, as far as some are free."""
        for host, other in list(self._packed.items()):
            if self._run([other], runs, states, free, snapshot):
                del self._packed[host]

    def _complete(
        self, runs: dict[str, dict[str, int]], states: dict[str, ScheduledJob], free: dict[str, int], snapshot: Snapshot
    ) -> None:
        """Who has lost devices, or asks for more than before, gets its full demand, if all that it lacks is free."""
        for name, counts in runs.items():
            for device_type, count in counts.items() if len(counts) == 1 else ():
                more = min(states[name].job.demand, snapshot.capacity[device_type]) - count
                if 0 < more <= free[device_type]:
                    free[device_type] -= more
                    runs[name] = {device_type: count + more}

    def _units(self) -> Iterator[str]:
        """Who takes turns: jobs alone, and for two that are packed, the host."""
        packed = set(self._packed.values())
        return (name for name in self._ring if name not in packed)

    def _to_the_end(self, names: Iterable[str]) -> None:
        for name in names:
            self._ring[name] = self._ring.pop(name)

    def _is_idle(self, state: ScheduledJob) -> bool:
        """Whether it has devices and has not come to a step on them yet."""
        return bool(state.devices) and not state.host and state.steps_done <= self._steps.get(state.id, -1.0)

    def _run(
        self,
        names: list[str],
        runs: dict[str, dict[str, int]],
        states: dict[str, ScheduledJob],
        free: dict[str, int],
        snapshot: Snapshot,
    ) -> list[str]:
        """Give jobs their demand out of *free*: of the type they are on if they can have it, else of the first."""
        started = []
        for name in names:
            state = states[name]
            for device_type in sorted(free, key=lambda device_type: device_type not in state.counts):
                demand = min(state.job.demand, snapshot.capacity[device_type])
                if state.job.min <= demand <= free[device_type] and snapshot.throughput.usable(state.job, device_type):
                    free[device_type] -= demand
                    runs[name] = {device_type: demand}
                    started.append(name)
                    break
        return started

    def _judge(self, states: dict[str, ScheduledJob], snapshot: Snapshot) -> None:
        """Look at what the pairs that ran together did, and undo those that do no more than by turns."""
        self._trials.clear()
        for host, other in list(self._packed.items()):
            if states[other].host == host:
                (device_type,) = states[host].counts
                together = _together(states[host], states[other], device_type, snapshot)
                self._seen[_key(states[host], states[other], device_type)] = sum(together)
                if sum(together) <= BY_TURNS:
                    del self._packed[host]

    def _pack(self, runs: dict[str, dict[str, int]], states: dict[str, ScheduledJob], snapshot: Snapshot) -> None:
        """Put jobs that would wait beside jobs that run."""
        hosts = [name for name in runs if name not in self._packed and _packable(states[name])]
        for name in [name for name in self._units() if name not in runs and name not in self._packed]:
            best, most = None, BY_TURNS
            for host in hosts if _packable(states[name]) else ():
                (device_type,) = runs[host]
                worth = self._seen.get(_key(states[host], states[name], device_type), UNTRIED)
                if worth > most and _fit(states[host], states[name], device_type, snapshot):
                    best, most = host, worth
            if best is not None:
                self._packed[best] = name
                hosts.remove(best)
                if most == UNTRIED:
                    self._trials.add(name)

    def _wake(self, runs: dict[str, dict[str, int]]) -> float | None:
        """At the end of the turn, if someone waits for it or shares a device on trial."""
        due = self._began + TURN_SECONDS
        waiting = any(name not in runs for name in self._units())
        if not (waiting or self._trials) or due <= self._asked:
            return None
        self._asked = due
        return due


def _packable(state: ScheduledJob) -> bool:
    """A job of one device that has run alone before."""
    return state.job.demand == 1 and state.steps_done > 0


def _together(host: ScheduledJob, other: ScheduledJob, device_type: str, snapshot: Snapshot) -> tuple[float, float]:
    """What is left of the speeds of two jobs on one device; 0 where they do not fit into its memory."""
    slowdown = snapshot.throughput.slowdown
    return slowdown(host.job, [other.job], device_type), slowdown(other.job, [host.job], device_type)


def _fit(host: ScheduledJob, other: ScheduledJob, device_type: str, snapshot: Snapshot) -> bool:
    """Whether both can run on a device, with its memory shared."""
    return snapshot.throughput.usable(other.job, device_type) and min(_together(host, other, device_type, snapshot)) > 0


def _key(one: ScheduledJob, other: ScheduledJob, device_type: str) -> SharedWorkloads:
    return device_type, frozenset((one.job.workload, other.job.workload))
