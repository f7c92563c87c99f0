"""The largest least value of a small program, in a fraction of the time that calling a general solver takes.

A primal simplex method on a dense table. What makes it quick is where it starts: every job in one column, chosen so
that devices are loaded evenly, and all jobs at the same level, as high as that choice allows. A few exchanges of
columns lead from there to the optimum, where a start from nothing takes several for each job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from virtualflow.cluster.linear_programs import Floats, Ints, Program

NOTHING = 1e-9  # what is nearer to 0 is 0; values are scaled so that the level is about 1 or less
SMALL = 1e-12  # in place of 0 where we divide


def max_min(program: Program) -> tuple[float, Floats] | None:
    """The level and the shares; None where this method is not made for it, or does not come to an end."""
    chosen = _spread(program)
    scale = float(program.value[chosen].min())
    if scale <= SMALL:
        return None
    table = _table(program, program.value / scale, chosen)
    columns, jobs = len(program.job), program.jobs
    # Variables: the columns, each job's value beyond the level, the level, unused time, and unused devices.
    inside = np.concatenate((chosen, np.arange(columns + jobs + 1, columns + 2 * jobs + 1 + len(program.capacity))))
    outside = np.arange(columns + 1)
    outside[chosen], outside[columns] = columns + np.arange(jobs), columns + jobs
    if not _climb(table, inside, outside):
        return None
    found = np.zeros(len(inside) + len(outside))
    found[inside] = table[:-1, -1]
    return float(table[-1, -1]) * scale, found[:columns]


def _spread(program: Program) -> Ints:
    """A column for each job. The jobs that cost the most choose first, each where devices are then loaded the least."""
    parts = program.usage / np.maximum(program.capacity, SMALL)
    kinds = parts.argmax(axis=1).tolist()  # the type that a column needs the most of
    costs = (parts.max(axis=1) / np.maximum(program.value, SMALL)).tolist()
    columns: list[list[int]] = [[] for _ in range(program.jobs)]
    for column, job in enumerate(program.job.tolist()):
        columns[job].append(column)
    order = sorted((-min([costs[column] for column in own]), job) for job, own in enumerate(columns))
    load = [0.0] * len(program.capacity)
    chosen = [0] * program.jobs
    for _, job in order:
        after, column = min([(load[kinds[column]] + costs[column], column) for column in columns[job]])
        load[kinds[column]] = after
        chosen[job] = column
    return np.array(chosen)


def _table(program: Program, value: Floats, chosen: Ints) -> Floats:
    """Variables inside the solution by those outside, which are 0: ``inside = last column - table @ outside``.

    Rows: each job's chosen column, its unused time, unused devices by type, and, last, the level with its sign turned.
    Columns: those of the jobs, with a job's value beyond the level in the place of its chosen one, and the level.
    """
    jobs, columns, job = program.jobs, len(program.job), program.job
    every, own = np.arange(columns), np.arange(jobs)
    instead = value / value[chosen][job]  # of the chosen column's time, what a column's time replaces
    per_level = 1 / value[chosen]
    used = program.usage[chosen]
    table = np.zeros((2 * jobs + len(program.capacity) + 1, columns + 2))
    column_rows, time_rows, device_rows = table[:jobs], table[jobs : 2 * jobs], table[2 * jobs : -1]
    column_rows[job, every] = instead
    time_rows[job, every] = 1 - instead
    device_rows[:, :columns] = (program.usage - used[job] * instead[:, None]).T
    column_rows[own, chosen] = column_rows[:, columns] = -per_level
    time_rows[own, chosen] = time_rows[:, columns] = per_level
    device_rows[:, chosen] = (used * per_level[:, None]).T
    device_rows[:, columns] = (used * per_level[:, None]).sum(axis=0)
    time_rows[:, -1], device_rows[:, -1] = 1.0, program.capacity
    table[-1, columns] = -1.0
    return table


def _climb(table: Floats, inside: Ints, outside: Ints) -> bool:
    """Let in what raises the level the most, until nothing does. False if that takes suspiciously long."""
    limits, gains = table[:-1, -1], table[-1, :-1]
    entering = len(gains) - 1  # the level itself
    for _ in range(10 * len(table)):
        column = table[:, entering].copy()
        leaving = int((column[:-1] / np.maximum(limits, SMALL)).argmax())
        pivot = column[leaving]
        if pivot <= NOTHING:
            return False
        column[leaving] = 0.0
        row = table[leaving] / pivot
        table -= column[:, None] * row
        table[leaving] = row
        table[:, entering] = column / -pivot
        table[leaving, entering] = 1 / pivot
        inside[leaving], outside[entering] = outside[entering], inside[leaving]
        entering = int(gains.argmin())
        if gains[entering] >= -NOTHING:
            return True
    return False
