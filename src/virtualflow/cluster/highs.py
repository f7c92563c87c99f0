"""The max-min program, solved by HiGHS: at any number of jobs, the same method from the same start.

One HiGHS object is kept for each thread, so that a program costs a fresh matrix and not a fresh solver. What makes it
quick is where it starts: every job in one column, chosen so that devices are loaded evenly, and all jobs at level 0.
From there a primal simplex method has a few exchanges of columns to make; from nothing it has several for each job.

The start is a function of the program alone, and HiGHS perturbs nothing: equal programs have equal solutions, whatever
was solved before.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import highspy
import numpy as np

from virtualflow.errors import PolicyError

if TYPE_CHECKING:
    from virtualflow.cluster.linear_programs import Floats, LinearProgram

SMALL = 1e-12  # in place of 0 where we divide
PRIMAL_SIMPLEX = 4
OPTIONS: dict[str, bool | int | float | str] = {
    "output_flag": False,
    "solver": "simplex",
    "simplex_strategy": PRIMAL_SIMPLEX,
    "presolve": "off",  # it would cost more than it saves, and undo the start
    "parallel": "off",
    "threads": 1,
    "simplex_scale_strategy": 0,  # values are scaled here
    "primal_simplex_bound_perturbation_multiplier": 0.0,
}
BASIC, AT_LOWER, AT_UPPER = (
    highspy.HighsBasisStatus.kBasic,
    highspy.HighsBasisStatus.kLower,
    highspy.HighsBasisStatus.kUpper,
)
_of_thread = threading.local()


@dataclass(frozen=True, slots=True)
class Optimum:
    """The level that all jobs reach, the shares of time, and the price of each job's value.

    A price is how much the level would fall if that job had to have one more: 0 if it holds nobody back.
    """

    level: float
    shares: Floats
    prices: Floats


def solve(program: LinearProgram, fixed: Floats | None = None) -> Optimum:
    """The largest level that every job's value can reach. *fixed* has the values of jobs that stay where they are.

    NaN marks those that take part.
    """
    solver = _solver()
    start = even_load(program)
    scale = float(program.value[start].min())
    scale = scale if scale > SMALL else 1.0
    _pass(solver, program, scale, fixed)
    if fixed is None:
        _begin_at(solver, program, start)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        status = solver.modelStatusToString(solver.getModelStatus())
        raise PolicyError(f"HiGHS found no shares for {program.jobs} jobs: {status}")
    solution = solver.getSolution()
    values = np.array(solution.col_value)
    values[1:][program.value <= 0] = 0.0  # a vertex may spend time in a column that is worth nothing
    prices = np.array(solution.row_dual[: program.jobs])
    return Optimum(float(values[0]) * scale, values[1:], -prices)


def even_load(program: LinearProgram) -> list[int]:
    """A column for each job. The jobs that cost the most choose first, each where devices are then loaded the least."""
    parts = program.usage / np.maximum(program.capacity, SMALL)
    busiest = parts.argmax(axis=1).tolist()  # the type that a column needs the most of
    costs = (parts.max(axis=1) / np.maximum(program.value, SMALL)).tolist()
    columns: list[list[int]] = [[] for _ in range(program.jobs)]
    for column, job in enumerate(program.job.tolist()):
        columns[job].append(column)
    order = sorted((-min([costs[column] for column in own]), job) for job, own in enumerate(columns))
    load = [0.0] * len(program.capacity)
    chosen = [0] * program.jobs
    for _, job in order:
        after, column = min([(load[busiest[column]] + costs[column], column) for column in columns[job]])
        load[busiest[column]] = after
        chosen[job] = column
    return chosen


def _solver() -> highspy.Highs:
    solver: highspy.Highs | None = getattr(_of_thread, "solver", None)
    if solver is None:
        solver = _of_thread.solver = highspy.Highs()  # type: ignore[no-untyped-call]
        for name, value in OPTIONS.items():
            solver.setOptionValue(name, value)
    return solver


def _pass(solver: highspy.Highs, program: LinearProgram, scale: float, fixed: Floats | None) -> None:
    """Variables: the level, then the columns. Rows: the level minus a job's value, a job's time, devices by type."""
    jobs, columns, types = program.jobs, len(program.job), len(program.capacity)
    width, rows = 2 + types, 2 * jobs + types
    entries, places = np.ones(jobs + columns * width), np.empty(jobs + columns * width, dtype=np.int32)
    places[:jobs] = np.arange(jobs)
    by_column, place_of = entries[jobs:].reshape(columns, width), places[jobs:].reshape(columns, width)
    by_column[:, 0] = program.value / -scale
    by_column[:, 2:] = program.usage
    place_of[:, 0] = program.job
    place_of[:, 1] = program.job + jobs
    place_of[:, 2:] = np.arange(2 * jobs, rows)
    starts = np.arange(jobs - width, jobs + columns * width + 1, width, dtype=np.int32)
    starts[0] = 0
    limits = np.concatenate((np.zeros(jobs), np.ones(jobs), program.capacity))
    if fixed is not None:
        held = ~np.isnan(fixed)
        limits[:jobs][held] = -fixed[held] / scale
        entries[:jobs][held] = 0.0  # of no effect on the level any more
    cost = np.zeros(columns + 1)
    cost[0] = -1.0
    infinity = highspy.kHighsInf
    solver.passModel(
        *(columns + 1, rows, len(entries), int(highspy.MatrixFormat.kColwise), int(highspy.ObjSense.kMinimize), 0.0),
        *(cost, np.zeros(columns + 1), np.full(columns + 1, infinity), np.full(rows, -infinity), limits),
        *(starts, places, entries, np.zeros(columns + 1, np.int32)),
    )


def _begin_at(solver: highspy.Highs, program: LinearProgram, start: list[int]) -> None:
    """Every job in its column of *start*; the level and all other columns at 0."""
    columns = [AT_LOWER] * (len(program.job) + 1)
    for column in start:
        columns[column + 1] = BASIC
    basis = highspy.HighsBasis()
    basis.valid, basis.alien = True, False
    basis.col_status = columns
    basis.row_status = [AT_UPPER] * program.jobs + [BASIC] * (program.jobs + len(program.capacity))
    solver.setBasis(basis)
