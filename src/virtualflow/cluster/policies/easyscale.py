"""EasyScale (Li et al., SC '23): jobs with a fixed number of logical workers grow into what is free, on any types.

A logical worker is what a virtual node is here: the batch, and every bit of the result, stay the same on any number of
devices. Every minute,

1. jobs that wait get their minimum of devices, first come, first served, of the slowest type that has them;
2. each other job proposes, for each type, the number of devices more that speeds it up the most for each of them, up to
   twice what it has. A proposal that wastes more than 30% of what its devices could do is none;
3. proposals are accepted by that gain, the largest first and one for each job, as long as devices are free.

Nobody shrinks for another. Rule, order and numbers are those of its authors' simulator
(github.com/sUntvoOk/EasyScale_info_for_SC23, ``easy_policy.py`` and ``simulator.py``).

Adapted: speeds, of mixed types too, come from the solver that spreads virtual nodes, where EasyScale's own planner
spreads logical workers; a job of theirs that waits asks for one type and waits for it, here the next one will do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from virtualflow.cluster.job import Job, ScheduledJob
from virtualflow.cluster.policies.base import Decision, Grant, Policy
from virtualflow.cluster.snapshot import Snapshot

ROUND_SECONDS = 60.0
WASTE = 0.3  # of what devices could do, which a proposal may leave unused
SMALL = 1e-9  # gains that differ by less are equal, and the larger proposal is made
GROWTH = 2  # times what a job has: how much it may have after a proposal


class Proposal(NamedTuple):
    """More devices of a type for a job."""

    gain: float  # in speed, for each of them, as a part of what it is now
    state: ScheduledJob
    device_type: str
    more: int


class EasyScale(Policy):
    """Growth by proposals."""

    name = "easyscale"
    round_seconds = ROUND_SECONDS
    restarts = True  # by a checkpoint

    def allocate(self, snapshot: Snapshot) -> Decision:
        free = dict(snapshot.free)
        grants: dict[str, Grant] = {}
        for state in snapshot.queue:
            if not any(free.values()):
                break
            kinds = [kind for kind in snapshot.types_for(state.job) if free[kind] >= state.job.min]
            if kinds:
                kind = min(kinds, key=lambda kind: snapshot.steps_per_second(state.job, kind, state.job.min))
                free[kind] -= state.job.min
                grants[state.id] = Grant({kind: state.job.min})
        proposals = [proposal for state in snapshot.running.values() for proposal in _proposals(state, free, snapshot)]
        for proposal in sorted(proposals, key=lambda proposal: -proposal.gain):
            state, kind = proposal.state, proposal.device_type
            if state.id not in grants and free[kind] >= proposal.more:
                free[kind] -= proposal.more
                grants[state.id] = Grant({**state.counts, kind: state.counts.get(kind, 0) + proposal.more})
        return Decision(grants)


def _proposals(state: ScheduledJob, free: dict[str, int], snapshot: Snapshot) -> Iterator[Proposal]:
    """The best one for each type."""
    job = state.job
    now = snapshot.speed(job, state.counts).steps_per_second
    room = min(GROWTH * state.allocation, job.demand) - state.allocation
    for kind in snapshot.types_for(job) if now else ():
        best: Proposal | None = None
        for more in range(1, min(room, free[kind]) + 1):
            counts = {**state.counts, kind: state.counts.get(kind, 0) + more}
            speed = snapshot.speed(job, counts).steps_per_second
            gain = (speed / now - 1) / more
            if (
                gain > 0
                and gain >= (best.gain - SMALL if best else 0.0)
                and speed >= (1 - WASTE) * _at_most(job, counts, snapshot)
            ):
                best = Proposal(gain, state, kind, more)
        if best is not None:
            yield best


def _at_most(job: Job, counts: dict[str, int], snapshot: Snapshot) -> float:
    """What devices could do if they did as much as in a job on one type only."""
    return sum(snapshot.steps_per_second(job, kind, count) for kind, count in counts.items())
