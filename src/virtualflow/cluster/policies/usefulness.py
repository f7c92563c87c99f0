"""Shares that help: a job stops growing where another device brings nothing, and what it leaves goes to others."""

from __future__ import annotations

from collections.abc import Sequence

from virtualflow.cluster.job import ScheduledJob
from virtualflow.cluster.policies.shares import Claim, Curve
from virtualflow.cluster.snapshot import Snapshot

WORTH_IT = 1.01  # a smaller gain in speed is not worth devices


def curve_of(state: ScheduledJob, snapshot: Snapshot) -> Curve:
    """The numbers of devices that make a job faster than every smaller number does, each with that speed.

    Types are taken in the cluster's order.
    """
    job, best = state.job, 0.0
    useful: list[tuple[int, float]] = []
    for count in range(job.min, job.demand + 1):
        counts, left = {}, count
        for name in snapshot.types_for(job):
            counts[name] = min(left, snapshot.capacity[name])
            left -= counts[name]
        if left:
            break  # the cluster has no more
        speed = snapshot.speed(job, counts).steps_per_second
        if not useful or speed > WORTH_IT * best:
            useful.append((count, speed))
            best = speed
    return tuple(useful)


def trimmed(claims: Sequence[Claim], held: Sequence[int], devices: int) -> list[int]:
    """Shares without the devices that bring nothing, and these to whom they help: the highest weight first.

    Of equal weights, to the one that gains the most for a device.
    """
    after = [_useful(claim, count) for claim, count in zip(claims, held, strict=True)]
    left = devices - sum(after)
    while left > 0:
        best: tuple[float, float, float] | None = None
        winner, more = 0, 0
        for place, claim in enumerate(claims):
            step = _next_step(claim, after[place], left)
            if step is not None and (best is None or step[0] > best):
                best, more = step
                winner = place
        if best is None:
            break
        after[winner] += more
        left -= more
    return after


def _useful(claim: Claim, count: int) -> int:
    """The most of *count* devices that help."""
    return max((number for number, _ in claim.curve if number <= count), default=count)


def _next_step(claim: Claim, count: int, left: int) -> tuple[tuple[float, float, float], int] | None:
    """How good it is to let a claim grow to where it gains something, and by how many devices."""
    now = next((speed for number, speed in claim.curve if number == count), 0.0)
    for number, speed in claim.curve:
        if number > count:
            more = number - count
            gain = (speed / now - 1) / more if now else 0.0
            return ((claim.weight, gain, -claim.arrival_seconds), more) if now and more <= left else None
    return None
