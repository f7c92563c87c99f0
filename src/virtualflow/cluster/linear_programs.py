"""Shares of time as linear programs.

A job may run in several ways, its *columns*: on devices of one type, or of several at once. A program finds the share
of time that each job should spend in each of its columns. One solver does that, whatever the number of jobs: see
`highs`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from virtualflow.cluster import highs

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DIGITS = 9  # of a share
TIGHT = 1e-9  # a job whose price is larger holds the others back
CLOSE = 1e-7  # two levels or ratios that differ by a smaller part are equal
SMALL = 1e-12  # in place of 0 where we divide
MAX_PROGRAMS = 50  # on the way to the best ratio; a handful is usual
MAX_NEWTON_STEPS = 100


@dataclass(frozen=True, slots=True)
class LinearProgram:
    """Columns of jobs: what each is worth to its job, and which devices it occupies."""

    jobs: int
    job: Ints  # of each column, job after job
    value: Floats  # of each column, if it had all the time
    usage: Floats  # devices of each column, by type
    capacity: Floats  # devices by type


@dataclass(frozen=True, slots=True)
class Solution:
    """An optimum: the objective's value, and each column's share of time."""

    objective: float
    shares: Floats


def max_min(program: LinearProgram) -> Solution:
    """The shares that maximise the smallest value of any job."""
    at_best = _all_at_best(program)
    if at_best is not None:
        return at_best
    optimum = highs.solve(program)
    return Solution(optimum.level, _rounded(optimum.shares))


def water_filling(program: LinearProgram) -> Solution:
    """The max-min shares, then the most for the second smallest value, and so on: no job is held back by another one.

    A job whose value has a price is at its limit in every optimum, so its value is fixed there, and the others go on.
    """
    fixed: Floats | None = None
    first: float | None = None
    while True:
        optimum = highs.solve(program, fixed)
        first = optimum.level if first is None else first
        fixed = np.full(program.jobs, np.nan) if fixed is None else fixed
        held = np.isnan(fixed) & (optimum.prices > TIGHT)
        fixed[held] = optimum.level * (1 - CLOSE)
        if not held.any() or not np.isnan(fixed).any():
            return Solution(first, np.clip(optimum.shares, 0.0, 1.0))


def min_makespan(program: LinearProgram, work: Floats) -> Solution:
    """The shares with which all jobs can end soonest; values are speeds. The objective is the seconds that takes."""
    solution = max_min(replace(program, value=program.value / work[program.job]))
    return Solution(1 / solution.objective, solution.shares)


def min_max_ratio(program: LinearProgram, elapsed: Floats, work: Floats, alone: Floats) -> Solution:
    """The shares that minimise the largest (elapsed + work / speed) / *alone*; values are speeds.

    Each program asks how much of certain speeds all jobs can reach at once. Its shares reach some ratio, and its prices
    prove that no shares can reach one below a bound. The next program asks for the speeds that the bound needs, until
    the two meet: the bound is a Newton step, so that takes a handful of programs.
    """
    at_best = _all_at_best(program)
    if at_best is not None:
        return replace(at_best, objective=_ratio(program, at_best.shares, elapsed, work, alone))
    fastest = np.maximum(_fastest(program), SMALL)
    bound = float(((elapsed + work / fastest) / alone).max())
    ratio, shares, speeds = np.inf, np.zeros(len(program.job)), work
    for number in range(MAX_PROGRAMS):
        optimum = highs.solve(replace(program, value=program.value / speeds[program.job]))
        reached = _ratio(program, optimum.shares, elapsed, work, alone)
        if reached < ratio:
            ratio, shares = reached, optimum.shares
        before, bound = bound, max(bound, _ratio_bound(optimum, speeds, elapsed, work, alone))
        if ratio <= bound * (1 + CLOSE) or (number and bound == before):
            break
        speeds = work / (bound * alone - elapsed)
    return Solution(ratio, _rounded(shares))


def _ratio(program: LinearProgram, shares: Floats, elapsed: Floats, work: Floats, alone: Floats) -> float:
    speeds = np.bincount(program.job, program.value * shares, minlength=program.jobs)
    return float(((elapsed + work / np.maximum(speeds, SMALL)) / alone).max())


def _ratio_bound(optimum: highs.Optimum, speeds: Floats, elapsed: Floats, work: Floats, alone: Floats) -> float:
    """A ratio that no shares can beat.

    With q = prices / *speeds*, no shares give jobs speeds whose sum weighted by q exceeds the level. A ratio r needs
    the speeds work / (r alone - elapsed), so it can be reached only if their weighted sum does not exceed it either.
    """
    weighted = optimum.prices / speeds * work
    priced = weighted > 0
    if not priced.any() or optimum.level <= 0:
        return 0.0
    weighted, elapsed, alone = weighted[priced], elapsed[priced], alone[priced]
    # The sum is convex and falls with r: from the left, where each single term is within the level, Newton's steps
    # never pass the root.
    bound = float(((elapsed + weighted / optimum.level) / alone).max())
    for _ in range(MAX_NEWTON_STEPS):
        left = bound * alone - elapsed
        step = float(((weighted / left).sum() - optimum.level) / (weighted * alone / left**2).sum())
        if step <= SMALL * bound:
            break
        bound += step
    return bound


def _fastest(program: LinearProgram) -> Floats:
    """Each job's largest value of any column."""
    best: Floats = np.maximum.reduceat(program.value, np.searchsorted(program.job, np.arange(program.jobs)))
    return best


def _all_at_best(program: LinearProgram) -> Solution | None:
    """Every job's best column for all of the time, if there are devices for that: no program can do better."""
    best = _fastest(program)
    # Of equally good columns the first one counts.
    places = np.flatnonzero(program.value >= best[program.job])
    chosen = places[np.searchsorted(program.job[places], np.arange(program.jobs))]
    if (program.usage[chosen].sum(axis=0) > program.capacity).any():
        return None
    shares = np.zeros(len(program.job))
    shares[chosen] = 1.0
    return Solution(float(best.min()), shares)


def _rounded(shares: Floats) -> Floats:
    """Shares that are equal, so to the bit: jobs that are equally far behind take turns."""
    rounded: Floats = shares.clip(0.0, 1.0).round(DIGITS)
    return rounded
