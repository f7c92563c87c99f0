"""Shares of time as linear programs.

A job may run in several ways, its *columns*: on devices of one type, or of several at once. A program finds the share
of time that each job should spend in each of its columns. Where jobs are few, a method of our own is many times faster
than a call of HiGHS (`simplex.py`). Else the matrix is written down directly, and HiGHS is called through
`scipy.optimize.milp` without integer variables: of SciPy's doors to it, the one that costs the least.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csc_array

from virtualflow.cluster import simplex
from virtualflow.errors import PolicyError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FEW_JOBS = 128  # up to here our own method is the faster one
DIGITS = 9  # of a share
TIGHT = 1e-9  # a job whose price is larger holds the others back
CLOSE = 1e-7  # of a ratio: nearer than that, two of them are equal
SMALL = 1e-12  # in place of 0 where we divide
MOST_STEPS = 50  # towards the best ratio; a handful is usual


@dataclass(frozen=True, slots=True)
class Program:
    """Columns of jobs: what each is worth to its job, and which devices it occupies."""

    jobs: int
    job: Ints  # of each column, job after job
    value: Floats  # of each column, if it had all the time
    usage: Floats  # devices of each column, by type
    capacity: Floats  # devices by type


@dataclass(frozen=True, slots=True)
class Solution:
    objective: float
    shares: Floats  # of time, by column


def max_min(program: Program) -> Solution:
    """Shares under which the job with the least value has the most."""
    at_best = _all_at_best(program)
    if at_best is not None:
        return at_best
    found = simplex.max_min(program) if program.jobs <= FEW_JOBS else None
    objective, shares = by_highs(program) if found is None else found
    # Rounded, so that shares that are equal are so to the bit: jobs that are equally far behind take turns.
    return Solution(objective, shares.clip(0.0, 1.0).round(DIGITS))


def by_highs(program: Program) -> tuple[float, Floats]:
    """The level and the shares, as the general solver finds them."""
    cost, matrix, limits = _rows(program)
    found = milp(cost, constraints=LinearConstraint(matrix, -np.inf, limits), bounds=Bounds(0.0, np.inf))
    if not found.success:
        raise PolicyError(f"HiGHS found no shares for {program.jobs} jobs: {found.message}")
    return -float(found.fun), found.x[1:]


def water_filling(program: Program) -> Solution:
    """The same, and then the most for the second least, and so on: nobody is held back by a job that cannot have more.

    A job whose row has a price is at its limit in every optimum, so its value is fixed there, and the others go on.
    """
    fixed = np.full(program.jobs, np.nan)
    first: float | None = None
    while True:
        cost, matrix, limits = _rows(program)
        frozen = ~np.isnan(fixed)
        limits[: program.jobs][frozen] = -fixed[frozen] * (1 - CLOSE)
        matrix.data[: program.jobs][frozen] = 0.0  # a frozen job no longer takes part in the race
        found = linprog(cost, A_ub=matrix, b_ub=limits, bounds=(0, None), method="highs")
        if not found.success:
            raise PolicyError(f"HiGHS found no shares for {program.jobs} jobs: {found.message}")
        first = -float(found.fun) if first is None else first
        prices = -found.ineqlin.marginals[: program.jobs]
        held = ~frozen & (prices > TIGHT)
        fixed[held] = -float(found.fun)
        if not held.any() or not np.isnan(fixed).any():
            return Solution(first, np.clip(found.x[1:], 0.0, 1.0))


def fewest_seconds(program: Program, work: Floats) -> Solution:
    """The shares with which all jobs can end soonest; values are speeds. The objective is the seconds that takes."""
    found = max_min(replace(program, value=program.value / work[program.job]))
    return Solution(1 / found.objective, found.shares)


def least_ratio(program: Program, elapsed: Floats, work: Floats, alone: Floats) -> Solution:
    """Shares that keep the largest (elapsed + work / speed) / *alone* small; values are speeds.

    A ratio can be kept if each job can have the speed that it asks for. From a ratio that can, the program finds how
    much faster than that all jobs can be at once, which gives a smaller one, until nothing is gained any more.
    """
    ratio, shares = np.inf, np.zeros(len(program.job))
    found = fewest_seconds(program, work)
    for _ in range(MOST_STEPS):
        speeds = np.bincount(program.job, program.value * found.shares, minlength=program.jobs)
        speeds = np.maximum(speeds, SMALL)
        reached = float(((elapsed + work / speeds) / alone).max())
        if reached < ratio:
            shares = found.shares
        if reached >= ratio * (1 - CLOSE):
            break
        ratio = reached
        left = np.maximum(ratio * alone - elapsed, SMALL * alone)  # of a job that is as good as done, rounding is left
        found = max_min(replace(program, value=program.value / (work / left)[program.job]))
    return Solution(min(ratio, reached), shares)


def _all_at_best(program: Program) -> Solution | None:
    """Everyone's best column for all of the time, if there are devices for that: no program can do better."""
    numbers = np.arange(program.jobs)
    best = np.maximum.reduceat(program.value, np.searchsorted(program.job, numbers))
    # Of equally good columns the first one counts.
    places = np.flatnonzero(program.value >= best[program.job])
    chosen = places[np.searchsorted(program.job[places], numbers)]
    if (program.usage[chosen].sum(axis=0) > program.capacity).any():
        return None
    shares = np.zeros(len(program.job))
    shares[chosen] = 1.0
    return Solution(float(best.min()), shares)


def _rows(program: Program) -> tuple[Floats, csc_array, Floats]:
    """Cost, matrix and limits. Variables: the level, then the columns. Rows: a job's value, its time, then devices."""
    jobs, columns, types = program.jobs, len(program.job), len(program.capacity)
    entries = np.empty((columns, 2 + types))
    entries[:, 0] = -program.value
    entries[:, 1] = 1.0
    entries[:, 2:] = program.usage
    rows = np.empty((columns, 2 + types), dtype=np.int32)
    rows[:, 0] = program.job
    rows[:, 1] = jobs + program.job
    rows[:, 2:] = np.arange(2 * jobs, 2 * jobs + types)
    starts = np.empty(columns + 2, dtype=np.int32)
    starts[0] = 0
    starts[1:] = jobs + (2 + types) * np.arange(columns + 1)
    matrix = csc_array(
        (
            np.concatenate((np.ones(jobs), entries.ravel())),
            np.concatenate((np.arange(jobs, dtype=np.int32), rows.ravel())),
            starts,
        ),
        shape=(2 * jobs + types, columns + 1),
    )
    cost = np.zeros(columns + 1)
    cost[0] = -1.0
    return cost, matrix, np.concatenate((np.zeros(jobs), np.ones(jobs), program.capacity))
