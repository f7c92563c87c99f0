"""Sia (Jayaram Subramanya et al., SOSP '23): goodput on devices of several types, by an integer program every minute.

A job may run in several *configurations*: one type, and a power of two of its devices on a machine, or whole machines.
The program chooses at most one for each job, so that devices suffice and the sum over jobs is least: the goodput of the
configuration, as a multiple of the job's smallest, to the power of -1/2; and 1.1 for a job that gets none. Where a
change would restart a job, its goodput counts less the more of its life the job has spent on restarts. A job gets at
most twice the devices that it ever had. Jobs run at their best batch size: **what is trained depends on the schedule**,
as under Pollux. Rule and numbers are those of its authors' simulator (github.com/siasosp23/artifacts, ``sia.py``).

Adapted: goodput is known on every type, where Sia starts from what one device of a type does and learns; where nothing
is known of a workload's batch sizes, its batch stays as it is; a restart counts as 30 s for every job; no job has more
devices than its demand; hybrid-parallel and rigid jobs are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import highspy
import numpy as np

from virtualflow.cluster.job import ScheduledJob
from virtualflow.cluster.policies.base import Decision, Options, Policy
from virtualflow.cluster.policies.restart_history import RESTART_SECONDS, RestartHistory
from virtualflow.cluster.snapshot import Snapshot
from virtualflow.errors import PolicyError

ROUND_SECONDS = 60.0
FAIRNESS = -0.5  # the power of a goodput
WAITS = 1.1  # what a job without devices costs; the smallest goodput costs 1
OPTIONS: dict[str, bool | int | float | str] = {
    "output_flag": False,
    "threads": 1,
    "mip_rel_gap": 1e-4,  # between the best answer and one that will do
}


class Way(NamedTuple):
    """A configuration of a job, and what it costs in the program."""

    job: int
    device_type: str
    devices: int
    cost: float


class Sia(Policy):
    """The best configurations, by an integer program."""

    name = "sia"
    round_seconds = ROUND_SECONDS
    restarts = True
    changes_batch = True
    live_refusal = (
        "it changes the batch size of running jobs, and with it what they train. Use las-mixed, which knows types and "
        "leaves the batch alone"
    )

    def __init__(self, options: Options = Options()) -> None:  # noqa: B008, frozen
        super().__init__(options)
        self._history = RestartHistory()

    def allocate(self, snapshot: Snapshot) -> Decision:
        states = list(snapshot.jobs())
        self._history.forget_others({state.id for state in states})
        ways = [way for place, state in enumerate(states) for way in self._ways(place, state, snapshot)]
        best = chosen(ways, snapshot.capacity)
        return self._history.decision([(states[way.job], way.device_type, way.devices) for way in best], snapshot)

    def _ways(self, place: int, state: ScheduledJob, snapshot: Snapshot) -> list[Way]:
        job = state.job
        most = self._history.limit(job)
        speeds = {
            (kind, count): speed
            for kind, sizes in snapshot.machine_sizes.items()
            for count in {*configurations(max(sizes), min(most, snapshot.capacity[kind])), job.min}
            if job.min <= count <= snapshot.capacity[kind]
            and (speed := snapshot.steps_per_second(job, kind, count)) > 0
        }
        if not speeds:
            return []
        least = min(speeds.values())
        is_new = snapshot.now - job.arrival_seconds < RESTART_SECONDS
        factor = 1.0 if is_new or not state.devices else self._history.kept_part(state, snapshot.now)
        ways = []
        for (kind, count), speed in speeds.items():
            worth = speed / least * (1.0 if state.counts == {kind: count} else factor)
            if worth > 0:
                ways.append(Way(place, kind, count, worth**FAIRNESS))
        return ways


def configurations(machine: int, most: int) -> list[int]:
    """Numbers of devices up to *most*: powers of two on a machine of that many, then whole machines."""
    powers = [2**power for power in range(machine.bit_length()) if 2**power < machine]
    return [count for count in (*powers, *range(machine, most + 1, machine)) if count <= most]


def chosen(ways: Sequence[Way], capacity: Mapping[str, int]) -> list[Way]:
    """At most one way for each job, so that devices suffice and costs are least; a job without one costs `WAITS`."""
    if not ways:
        return []
    kinds, jobs = list(capacity), list(dict.fromkeys(way.job for way in ways))
    row_of = {job: row for row, job in enumerate(jobs)}
    width, rows = len(ways), len(jobs) + len(kinds)
    places = [row for way in ways for row in (row_of[way.job], len(jobs) + kinds.index(way.device_type))]
    entries = [number for way in ways for number in (1.0, float(way.devices))]
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    for name, value in OPTIONS.items():
        solver.setOptionValue(name, value)
    model: list[Any] = [
        *(width, rows, 2 * width, int(highspy.MatrixFormat.kColwise), int(highspy.ObjSense.kMinimize), 0.0),
        *(np.array([way.cost - WAITS for way in ways]), np.zeros(width), np.ones(width)),
        *(np.full(rows, -highspy.kHighsInf), np.array([1.0] * len(jobs) + [float(capacity[kind]) for kind in kinds])),
        *(np.arange(0, 2 * width + 1, 2, dtype=np.int32), np.array(places, dtype=np.int32), np.array(entries)),
        np.full(width, int(highspy.HighsVarType.kInteger), dtype=np.int32),
    ]
    solver.passModel(*model)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        status = solver.modelStatusToString(solver.getModelStatus())
        raise PolicyError(f"HiGHS found no configurations for {len(jobs)} jobs: {status}")
    return [way for way, part in zip(ways, solver.getSolution().col_value, strict=True) if part > 0.5]
