"""Elastic weighted fair sharing: the paper's Algorithm 1.

Running jobs expand into what is free; then jobs are admitted from the queue, one after another, while no running job of
higher priority loses a device by it. Shares are by weight, at least 1, capped at the demand, and what that leaves over
is shared again. A job's weight is its priority: a number of its own (``wfs``), or how short it is as a whole (``sjf``)
or from here on (``srtf``).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from operator import lt
from typing import Any

from virtualflow.cluster.job import JobState
from virtualflow.cluster.policies import shares
from virtualflow.cluster.policies.base import NOTHING, Decision, Grant, Options, Policy
from virtualflow.cluster.policies.shares import Claim
from virtualflow.cluster.snapshot import Snapshot

WORTH_MOVING = 1.1  # a smaller gain in speed is not worth a restart on other devices


class Wfs(Policy):
    """Priorities are the jobs' own."""

    name = "wfs"

    def __init__(self, options: Options = Options()) -> None:  # noqa: B008, frozen
        super().__init__(options)
        self._split = shares.rounding(options.round)
        self._any_number = options.round == "any"
        self._known: dict[str, Claim] = {}
        self._forgotten: dict[str, Claim] = {}  # until it is known whether they still hold

    def forget(self, job_id: str) -> None:
        if (claim := self._known.pop(job_id, None)) is not None:
            self._forgotten[job_id] = claim

    def order(self, state: JobState, snapshot: Snapshot) -> tuple[Any, ...]:
        return (-self.weight(state, snapshot), state.job.arrival_seconds)

    def weight(self, state: JobState, snapshot: Snapshot) -> float:
        """Its priority: the larger, the more devices, and the earlier its turn."""
        return state.job.priority

    def allocate(self, snapshot: Snapshot) -> Decision:
        grants = self._room_for_all(snapshot)
        if grants is None:
            grants = self._shared(snapshot)
        return Decision(grants or self._trade_up(snapshot))

    def _room_for_all(self, snapshot: Snapshot) -> dict[str, Grant] | None:
        """Everyone's full demand, if there are devices for that: what the shares would come to, found at once."""
        if snapshot.lacking or not self._any_number:
            return None
        grants, idle = {}, snapshot.idle
        for state in snapshot.queue:
            idle -= state.job.demand
            if idle < 0:
                return None
            grants[state.id] = Grant.of(state.job.demand)
        return grants

    def _trade_up(self, snapshot: Snapshot) -> dict[str, Grant]:
        """Where nobody else wants them, running jobs move to free devices of a faster type: high priorities first."""
        if len(snapshot.capacity) == 1 or not snapshot.idle:
            return {}
        grants, free = {}, dict(snapshot.free)
        for state in sorted(snapshot.running.values(), key=lambda state: self.order(state, snapshot)):
            best, least = None, WORTH_MOVING * snapshot.speed(state.job, state.counts).steps_per_second
            for new, old in itertools.permutations(free, 2):
                count = min(free[new], state.counts.get(old, 0))
                if count and snapshot.throughput.usable(state.job, new):
                    counts = _moved(state.counts, count, old, new)
                    speed = snapshot.speed(state.job, counts).steps_per_second
                    if speed > least:
                        best, least = (counts, new, old, count), speed
            if best is not None:
                counts, new, old, count = best
                grants[state.id] = Grant(counts)
                free[new] -= count
                free[old] += count
        return grants

    def _shared(self, snapshot: Snapshot) -> dict[str, Grant]:
        devices = snapshot.devices
        if len(snapshot.running) == devices and not snapshot.idle:
            return {}  # one each: nobody can give, so nobody can be admitted
        states, claims = list(snapshot.running.values()), self._claims_of(snapshot)
        suspended: list[JobState] = []
        if sum(claim.least for claim in claims) > devices:  # some devices were lost: the last in line wait
            states, claims, suspended = _that_fit(states, claims, devices)
        had = [state.allocation for state in states]
        shares_changed = self._has_new_weights()
        held = self._fit(claims, had, devices) if snapshot.idle or suspended or shares_changed else had
        for state in () if suspended else snapshot.queue:
            candidate = self._claim(state, snapshot)
            if sum(claim.least for claim in claims) + candidate.least > devices:
                break
            shared = self._fit([*claims, candidate], [*held, 0], devices)
            if self._costs_a_higher_one(candidate, claims, held, shared):
                break
            states.append(state)
            claims.append(candidate)
            self._known[state.id] = candidate
            had, held = [*had, 0], shared
        if self._any_number:
            shares.protect(claims, had, held)  # over all admissions together
        grants = {state.id: NOTHING for state in suspended}
        for state, before, count in zip(states, had, held, strict=True):
            if count != before:
                grants[state.id] = Grant.of(count)
        return grants

    def _has_new_weights(self) -> bool:
        """Whether a running job's owner has changed his mind, so that the others' shares change too."""
        before, self._forgotten = self._forgotten, {}
        return any(name in self._known and self._known[name].weight != claim.weight for name, claim in before.items())

    def _costs_a_higher_one(
        self, candidate: Claim, claims: Sequence[Claim], held: Sequence[int], shared: Sequence[int]
    ) -> bool:
        """Whether a job of higher priority would lose a device if the candidate were admitted."""
        if not any(map(lt, shared, held)):
            return False
        pairs = zip(claims, shared, held, strict=False)  # the candidate itself comes last, and holds nothing
        return any(new < old and claim.weight > candidate.weight for claim, new, old in pairs)

    def _claims_of(self, snapshot: Snapshot) -> list[Claim]:
        """Those of running jobs, which stay what they are unless weights depend on progress."""
        known = {} if self.needs_progress else self._known
        claims = [known.get(name) or self._claim(state, snapshot) for name, state in snapshot.running.items()]
        self._known = dict(zip(snapshot.running, claims, strict=True))
        return claims

    def _claim(self, state: JobState, snapshot: Snapshot) -> Claim:
        return Claim.of(self.weight(state, snapshot), state.job.arrival_seconds, state.job.demand, state.job.least)

    def _fit(self, claims: Sequence[Claim], before: Sequence[int], devices: int) -> list[int]:
        if not claims:
            return []
        after = self._split(claims, devices)
        if self._any_number:
            shares.protect(claims, before, after)
        return after


def _that_fit(
    states: Sequence[JobState], claims: Sequence[Claim], devices: int
) -> tuple[list[JobState], list[Claim], list[JobState]]:
    """The first in line, as far as the devices go, with their claims; and the others."""
    order = sorted(zip(claims, states, strict=True), key=lambda pair: (-pair[0].weight, pair[0].arrival_seconds))
    fit, left, devices_left = [], [], devices
    for claim, state in order:
        if claim.least <= devices_left:
            devices_left -= claim.least
            fit.append((state, claim))
        else:
            left.append(state)
    return [state for state, _ in fit], [claim for _, claim in fit], left


class Sjf(Wfs):
    """Shortest job first: a job's weight falls with the time that it takes as a whole, on its full demand."""

    name = "sjf"

    def weight(self, state: JobState, snapshot: Snapshot) -> float:
        return snapshot.fastest(state.job) / state.job.steps


class Srtf(Wfs):
    """Shortest remaining time first: a job's weight grows as its end comes near."""

    name = "srtf"
    needs_progress = True

    def weight(self, state: JobState, snapshot: Snapshot) -> float:
        return snapshot.fastest(state.job) / max(1.0, state.steps_left)


def _moved(counts: Mapping[str, int], count: int, old: str, new: str) -> dict[str, int]:
    """Devices by type, after *count* of them were exchanged for ones of another type."""
    after = {**counts, new: counts.get(new, 0) + count, old: counts[old] - count}
    return {name: number for name, number in after.items() if number}
