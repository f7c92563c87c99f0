"""Speeds if node sizes may be chosen anew for each allocation: the setting of the paper's simulated scheduler.

There, a job on one type runs at the best speed that was profiled, times the devices, whatever its batch; on several, as
the solver finds, which meets the batch exactly. A live job's node sizes are fixed: see `Profiled` for that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from virtualflow.cluster.job import Job
from virtualflow.cluster.throughput.model import Speed
from virtualflow.core.devices import Pool
from virtualflow.core.profile import Communication, Workload
from virtualflow.solver.profile_files import built_in
from virtualflow.solver.search import cheapest, solve_free

MAX_NODES = 256  # of a batch: smaller nodes are slow, and the solver's work grows with the batch over their size


class FreeSizes:
    """Of the paper's workloads; its setting has no communication."""

    def __init__(self, *, communication: bool = False) -> None:
        self._communication = communication
        self._workloads: dict[str, Workload] = {}
        self._known: dict[tuple[str, int, tuple[Pool, ...]], Speed] = {}

    def speed(self, job: Job, pools: tuple[Pool, ...]) -> Speed:
        key = (job.workload, job.batch_size, pools)
        if key not in self._known:
            self._known[key] = self._speed(self._workload(job.workload), job.batch_size, pools)
        return self._known[key]

    def usable(self, job: Job, device_type: str) -> bool:
        return device_type in self._workload(job.workload).profiles

    def slowdown(self, job: Job, beside: Sequence[Job], device_type: str) -> float:
        return 1 / (1 + len(beside))  # nothing measured: they take turns

    def _speed(self, workload: Workload, batch_size: int, pools: tuple[Pool, ...]) -> Speed:
        alone = [
            Speed(1 / _seconds(workload, pool, batch_size), pool.count, ((pool.device_type, pool.count),))
            for pool in pools
        ]
        best = max(alone, key=lambda speed: speed.steps_per_second)
        if len(pools) > 1:
            plan = solve_free(*_in_larger_units(workload, pools, batch_size))
            if 1 / plan.step_seconds > best.steps_per_second:
                return Speed(1 / plan.step_seconds, plan.devices, plan.used)
        return best

    def _workload(self, name: str) -> Workload:
        if name not in self._workloads:
            known = built_in(name)
            self._workloads[name] = known if self._communication else replace(known, communication=Communication())
        return self._workloads[name]


def _seconds(workload: Workload, pool: Pool, batch_size: int) -> float:
    """Of a step on all devices of a pool, at their best speed whatever the batch."""
    fastest = max(point.examples_per_second for point in workload.profile(pool.device_type).points)
    return batch_size / (fastest * pool.count) + cheapest(workload.communication, [(pool, pool.count)])


def _in_larger_units(
    workload: Workload, pools: tuple[Pool, ...], batch_size: int
) -> tuple[Workload, tuple[Pool, ...], int]:
    """The same question without tiny nodes, and with examples counted by the common divisor of what is left."""
    points = {
        pool.device_type: [
            point
            for point in workload.profile(pool.device_type).points
            if point.node_size * MAX_NODES >= batch_size
            or point.node_size == workload.profile(pool.device_type).largest
        ]
        for pool in pools
    }
    unit = math.gcd(batch_size, *(point.node_size for some in points.values() for point in some))
    profiles = {
        name: replace(
            workload.profile(name), points=tuple(replace(point, node_size=point.node_size // unit) for point in some)
        )
        for name, some in points.items()
    }
    return replace(workload, profiles=profiles), pools, batch_size // unit
