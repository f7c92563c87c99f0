"""Elastic weighted fair sharing: the paper's Algorithm 1.

Running jobs expand into what is free; then jobs are admitted from the queue, one after another, while no running job of
higher priority loses a device by it. Shares are by weight, at least 1, capped at the demand, and what that leaves over
is shared again. A job's weight is its priority: a number of its own (``wfs``), or how short it is as a whole (``sjf``)
or from here on (``srtf``). With the option `useful`, jobs take no device that brings them nothing: see `usefulness`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from operator import lt
from typing import Any

from virtualflow.cluster.job import Job, ScheduledJob
from virtualflow.cluster.policies import shares, typed, usefulness
from virtualflow.cluster.policies.base import Decision, Grant, Options, Policy
from virtualflow.cluster.policies.shares import Claim
from virtualflow.cluster.snapshot import Snapshot
from virtualflow.cluster.users import Sharing

LIGHTEST = 1e-12  # no weight is 0, however slow a job is
WORTH_MOVING = 1.1  # a smaller gain in speed is not worth a restart on other devices


class Wfs(Policy):
    """Priorities are the jobs' own."""

    name = "wfs"
    sharing: Sharing | None = Sharing.DEVICES

    def __init__(self, options: Options = Options()) -> None:  # noqa: B008, frozen
        super().__init__(options)
        self._split = shares.rounding(options.round)
        self._any_number = options.round == "any" and not options.useful
        self._useful = options.useful
        self._known: dict[str, Claim] = {}
        self._forgotten: dict[str, Job] = {}  # as they were, until it is known whether their claims still hold
        self._devices = 0  # in the cluster at the last decision

    def forget(self, before: Job) -> None:
        self._known.pop(before.id, None)
        self._forgotten.setdefault(before.id, before)

    def order(self, state: ScheduledJob, snapshot: Snapshot) -> tuple[Any, ...]:
        return (-self.weight(state, snapshot), state.job.arrival_seconds)

    def weight(self, state: ScheduledJob, snapshot: Snapshot) -> float:
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
        grants, idle, types = {}, snapshot.idle, len(snapshot.capacity)
        for state in snapshot.queue:
            idle -= state.job.demand
            if idle < 0 or (types > 1 and len(snapshot.types_for(state.job)) < types):
                return None
            grants[state.id] = Grant.of(state.job.demand)
        if types > 1 and grants and not typed.is_plain(self._claims_of(snapshot), snapshot.capacity):
            return None
        self._devices = snapshot.devices
        self._forgotten.clear()  # where everyone has all, nobody's share was at the cost of another's
        return grants

    def _trade_up(self, snapshot: Snapshot) -> dict[str, Grant]:
        """Where nobody else wants them, running jobs move to free devices of a faster type: high priorities first."""
        if len(snapshot.capacity) == 1 or not snapshot.idle:
            return {}
        grants, free = {}, dict(snapshot.free)
        for state in sorted(snapshot.running.values(), key=lambda state: self.order(state, snapshot)):
            best, fastest = None, WORTH_MOVING * snapshot.speed(state.job, state.counts).steps_per_second
            for new, old in itertools.permutations(free, 2):
                count = min(free[new], state.counts.get(old, 0))
                if count and snapshot.throughput.usable(state.job, new):
                    counts = _moved(state.counts, count, old, new)
                    speed = snapshot.speed(state.job, counts).steps_per_second
                    if speed > fastest:
                        best, fastest = (counts, new, old, count), speed
            if best is not None:
                counts, new, old, count = best
                grants[state.id] = Grant(counts)
                free[new] -= count
                free[old] += count
        return grants

    def _shared(self, snapshot: Snapshot) -> dict[str, Grant]:
        disturbed = self._is_disturbed(snapshot)
        if len(snapshot.running) == snapshot.devices and not snapshot.idle:
            return {}  # one device each: no job can give one up, so none can be admitted
        states, claims = list(snapshot.running.values()), self._claims_of(snapshot)
        disturbed |= self._has_new_claims(snapshot)
        plain = typed.is_plain(claims, snapshot.capacity)  # asked once: there may be thousands of claims
        had = [state.allocation for state in states]
        if snapshot.idle or disturbed:
            held = self._as_placed(states, claims, self._fit(claims, had, snapshot, plain), snapshot, plain)
        else:
            held = had
        blocked: frozenset[str] = frozenset()  # types for which someone further in front waits
        for state in snapshot.queue:
            if not snapshot.within_reach(state.job):
                continue  # its turn comes when devices are back
            candidate = self._claim(state, snapshot)
            if candidate.types and candidate.types <= blocked:
                continue
            plain_with = plain and typed.is_plain([candidate], snapshot.capacity)
            shared = self._with(candidate, claims, held, snapshot, plain_with)
            if shared is not None and not plain_with:
                shared = self._as_placed([*states, state], [*claims, candidate], shared, snapshot, plain_with)
            if shared is None or not shared[-1]:  # jobs of higher priority have all that it can use
                blocked |= candidate.types
                if len(blocked) == len(snapshot.capacity) or not candidate.types:
                    break
                continue
            states.append(state)
            claims.append(candidate)
            self._known[state.id] = candidate
            had, held, plain = [*had, 0], shared, plain_with
        if not plain:
            return self._placed(states, claims, held, snapshot)
        if self._any_number:
            shares.protect(claims, had, held)  # over all admissions together
        return {
            state.id: Grant.of(count) for state, before, count in zip(states, had, held, strict=True) if count != before
        }

    def _with(
        self, candidate: Claim, claims: Sequence[Claim], held: Sequence[int], snapshot: Snapshot, plain: bool
    ) -> list[int] | None:
        """Everyone's share if a job were admitted; None if it can't be, or not without cost to a higher priority."""
        everyone = [*claims, candidate]
        if not typed.can_all_live(everyone, snapshot.capacity, plain=plain):
            return None
        shared = self._fit(everyone, [*held, 0], snapshot, plain)
        return None if self._costs_a_higher_one(candidate, claims, held, shared) else shared

    def _as_placed(
        self,
        states: Sequence[ScheduledJob],
        claims: Sequence[Claim],
        held: Sequence[int],
        snapshot: Snapshot,
        plain: bool,
    ) -> list[int]:
        """What shares come to on devices that the jobs can use."""
        if plain:
            return list(held)
        places = typed.Places(claims, [state.counts for state in states], snapshot.capacity)
        return [sum(counts.values()) for counts in places.find(held, fill=False)]

    def _placed(
        self, states: Sequence[ScheduledJob], claims: Sequence[Claim], held: Sequence[int], snapshot: Snapshot
    ) -> dict[str, Grant]:
        """Where some jobs can't use every type, those who can make room for them."""
        places = typed.Places(claims, [state.counts for state in states], snapshot.capacity)
        chosen = places.find(held, fill=self._any_number)
        return {
            state.id: Grant(counts)
            for state, counts in zip(states, chosen, strict=True)
            if counts != dict(state.counts)
        }

    def _is_disturbed(self, snapshot: Snapshot) -> bool:
        """Whether devices were lost since the last time: who happened to be on them is not the one to pay for that."""
        before, self._devices = self._devices, snapshot.devices
        return snapshot.devices < before

    def _has_new_claims(self, snapshot: Snapshot) -> bool:
        """Whether the demand, minimum or priority of a running job has changed, and with it the others' shares."""
        before, self._forgotten = self._forgotten, {}
        return any(
            name in self._known and self._known[name] != self._claim(ScheduledJob(job), snapshot)
            for name, job in before.items()
        )

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

    def _claim(self, state: ScheduledJob, snapshot: Snapshot) -> Claim:
        job = state.job
        return Claim.of(
            self.weight(state, snapshot),
            job.arrival_seconds,
            job.demand,
            job.min,
            self._types(state, snapshot),
            usefulness.curve_of(state, snapshot) if self._useful else (),
        )

    def _types(self, state: ScheduledJob, snapshot: Snapshot) -> frozenset[str]:
        return frozenset() if len(snapshot.capacity) == 1 else frozenset(snapshot.types_for(state.job))

    def _fit(self, claims: Sequence[Claim], before: Sequence[int], snapshot: Snapshot, plain: bool) -> list[int]:
        if plain:
            return self._fit_group(claims, before, snapshot.devices)
        after = [0] * len(claims)
        for places, devices in typed.groups(claims, snapshot.capacity):
            some, had = [claims[place] for place in places], [before[place] for place in places]
            for place, count in zip(places, self._fit_group(some, had, devices), strict=True):
                after[place] = count
        return after

    def _fit_group(self, claims: Sequence[Claim], before: Sequence[int], devices: int) -> list[int]:
        if not claims:
            return []
        after = self._split(claims, devices)
        if self._any_number:
            shares.protect(claims, before, after)
        return usefulness.trimmed(claims, after, devices) if self._useful else after


class Sjf(Wfs):
    """Shortest job first: a job's weight falls with the time that it takes as a whole, on its full demand."""

    name = "sjf"
    sharing = None  # its weights are lengths

    def weight(self, state: ScheduledJob, snapshot: Snapshot) -> float:
        return max(LIGHTEST, snapshot.fastest(state.job) / state.job.steps)


class Srtf(Wfs):
    """Shortest remaining time first: a job's weight grows as its end comes near."""

    name = "srtf"
    sharing = None
    needs_progress = True

    def weight(self, state: ScheduledJob, snapshot: Snapshot) -> float:
        return max(LIGHTEST, snapshot.fastest(state.job) / max(1.0, state.steps_left))


def _moved(counts: Mapping[str, int], count: int, old: str, new: str) -> dict[str, int]:
    """Devices by type, after *count* of them were exchanged for ones of another type."""
    after = {**counts, new: counts.get(new, 0) + count, old: counts[old] - count}
    return {name: number for name, number in after.items() if number}
