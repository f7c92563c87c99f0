"""How fast a job would run: the question that the driver of time and many policies ask.

Answers come from profiles, through the same solver as real runs use, so that a simulated job and a live one agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from virtualflow.cluster.job import LINEAR, Job
from virtualflow.core.devices import Pool
from virtualflow.core.profile import Workload
from virtualflow.errors import ConfigError
from virtualflow.solver import alternatives
from virtualflow.solver.profile_files import BUILT_IN, built_in
from virtualflow.solver.search import predict, solve_fixed


@dataclass(frozen=True, slots=True)
class Speed:
    """Steps a second, and how many of the devices really take part."""

    steps_per_second: float
    devices: int
    used: tuple[tuple[str, int], ...] = ()  # those, by type, where the solver chose


class Throughput(Protocol):
    """Speeds of jobs. *pools* are the job's own devices by type and machine."""

    def speed(self, job: Job, pools: tuple[Pool, ...]) -> Speed: ...

    def usable(self, job: Job, device_type: str) -> bool:
        """Whether the job can run on devices of that type at all."""
        ...

    def slowdown(self, job: Job, beside: Sequence[Job], device_type: str) -> float:
        """What is left of its speed, 0 to 1, while *beside* run on the same devices."""
        ...


class Profiled:
    """From the profiles of workloads; jobs of which only the run time is known speed up linearly."""

    def __init__(
        self, workloads: Iterable[Workload] = (), *, slower: Mapping[str, float] | None = None, even: bool = False
    ) -> None:
        """*slower* multiplies the step times of a workload: what training takes beyond what was profiled.

        *even* spreads virtual nodes over all devices alike, as the paper's system does, where the solver may leave
        some unused.
        """
        self._workloads = {workload.name: workload for workload in workloads}
        self._slower = dict(slower or {})
        self._even = even
        self._known: dict[tuple[str, int, int, tuple[Pool, ...]], Speed] = {}

    def speed(self, job: Job, pools: tuple[Pool, ...]) -> Speed:
        devices = 0
        for pool in pools:
            devices += pool.count
        if job.workload == LINEAR:
            used = min(devices, job.demand)
            return Speed(used / job.demand, used)
        key = (job.workload, job.node_size, job.virtual_nodes, pools)
        if key not in self._known:
            self._known[key] = self._solved(job, pools)
        return self._known[key]

    def _solved(self, job: Job, pools: tuple[Pool, ...]) -> Speed:
        workload = self._workload(job)
        plan = solve_fixed(workload, pools, job.node_size, job.virtual_nodes)
        if self._even:
            plan = predict(workload, pools, alternatives.even(plan, pools))
        return Speed(1 / plan.step_seconds, plan.devices, plan.used)

    def usable(self, job: Job, device_type: str) -> bool:
        if job.workload == LINEAR:
            return True
        profile = self._workload(job).profiles.get(device_type)
        return profile is not None and profile.may_hold(job.node_size)

    def slowdown(self, job: Job, beside: Sequence[Job], device_type: str) -> float:
        return 1 / (1 + len(beside))  # nothing measured: they take turns

    def _workload(self, job: Job) -> Workload:
        if job.workload not in self._workloads:
            if job.workload not in BUILT_IN:
                raise ConfigError(
                    f"job {job.id}: nothing is known of the speed of workload {job.workload!r}. Known are "
                    f"{', '.join(sorted({*BUILT_IN, *self._workloads}))}; give a table of others with --throughputs."
                )
            self._workloads[job.workload] = _scaled(built_in(job.workload), self._slower.get(job.workload, 1.0))
        return self._workloads[job.workload]


def _scaled(workload: Workload, factor: float) -> Workload:
    profiles = {
        name: replace(profile, points=tuple(replace(point, seconds=point.seconds * factor) for point in profile.points))
        for name, profile in workload.profiles.items()
    }
    return replace(workload, profiles=profiles)
