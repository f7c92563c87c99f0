"""Speeds that are learnt from the steps that a job has made.

A step takes as long as its slowest device computes, plus what does not depend on the devices, plus a part for each
device beyond the first::

    seconds = max over types (waves x seconds of a virtual node there) + fixed + more x (devices - 1)

A `Guess` says what these are before the job has run: from a profile, from other jobs of the same script, or that speed
is linear and all types are equal. Steps correct it, by Bayes' rule with normal errors, so that each prediction comes
with its uncertainty: what was measured is certain, what resembles it less so, a type that the job never saw hardly.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median

import numpy as np
from numpy.typing import NDArray

from virtualflow.cluster.job import Job
from virtualflow.cluster.throughput.model import Profiled, Speed
from virtualflow.core.devices import Pool
from virtualflow.core.profile import Communication, Point, Profile, Workload
from virtualflow.core.step_times import TimedSteps, TypeShare, TypeShares
from virtualflow.solver.node_shares import Plan
from virtualflow.solver.search import solve_fixed

LINEAR, PROFILE, SCRIPT, OWN = "linear", "profile", "other jobs of the script", "its own steps"  # where it comes from
MISFIT = 0.02  # of a step: the model is not the truth, however often something was measured
DIFFERS = 1.05  # a prediction that changes by less is not worth a decision
ROUNDS = 4  # of fitting: which type is the slowest depends on what is fitted
FAR = 1 << 20  # devices: a line needs two points

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Guess:
    """What is thought of a job before its own steps are seen. Only ratios count: the first steps set the scale."""

    seconds: Mapping[str, float]  # of a virtual node, by device type
    fixed: float = 0.0
    more: float = 0.0  # for each device beyond the first
    doubt: float = 1.0  # standard deviation of a type's seconds, as a part of them
    source: str = LINEAR
    doubtful: frozenset[str] = frozenset()  # types of which nothing was known

    @classmethod
    def linear(cls, types: Collection[str]) -> Guess:
        return cls(dict.fromkeys(types, 1.0), doubtful=frozenset(types))

    def on(self, types: Collection[str]) -> Guess:
        """For these types; those of which nothing is known are taken to be like the others."""
        known = {name: self.seconds[name] for name in types if name in self.seconds}
        if not known:
            return Guess.linear(types)
        usual = median(known.values())
        return Guess(
            {name: known.get(name, usual) for name in types},
            self.fixed,
            self.more,
            self.doubt,
            self.source,
            self.doubtful & known.keys() | (frozenset(types) - known.keys()),
        )


def from_profile(workload: Workload, node_size: int | None) -> Guess | None:
    """What ``vf profile`` has measured. Without a *node_size*, the largest one that all types have room for."""
    profiles = {name: profile for name, profile in workload.profiles.items() if not profile.void}
    if not profiles:
        return None
    size = node_size or min(profile.largest for profile in profiles.values())
    costs = workload.communication.by_devices
    return Guess(
        {name: profile.seconds(size) for name, profile in profiles.items()},
        median(profile.update_seconds for profile in profiles.values()),
        costs[-1][1] / max(1, costs[-1][0] - 1) if costs else 0.0,
        0.3,
        PROFILE,
    )


@dataclass(frozen=True)
class StepModel:
    """How long a step of one job takes, by devices."""

    virtual_nodes: int
    types: tuple[str, ...]
    mean: Floats  # seconds of a virtual node by type, then fixed, then more
    covariance: Floats
    source: str
    doubtful: frozenset[str] = frozenset()  # types of which nothing is known yet
    measured: tuple[TimedSteps, ...] = ()
    _known: dict[tuple[tuple[Pool, ...], int], Plan] = field(default_factory=dict, repr=False)

    def plan(self, pools: Sequence[Pool], most: int) -> Plan:
        """The fastest way to use devices among *pools*, at most *most* of them: those of the fastest types first."""
        key = (tuple(pools), most)
        if key not in self._known:
            taken, left = [], min(most, self.virtual_nodes)
            for pool in sorted(pools, key=lambda pool: self.mean[self.types.index(pool.device_type)]):
                if count := min(pool.count, left):
                    taken.append(Pool(pool.device_type, (1,) * count))  # where they are is not part of the model
                    left -= count
            self._known[key] = solve_fixed(self._workload, taken, 1, self.virtual_nodes)
        return self._known[key]

    def seconds(self, layout: TypeShares) -> tuple[float, float]:
        """Of a step, and the standard deviation of that prediction."""
        row = _row(layout, self.types, self.mean)
        return float(row @ self.mean), math.sqrt(max(0.0, float(row @ self.covariance @ row)))

    def prediction(self, pools: Sequence[Pool], most: int) -> tuple[TypeShares, float, float]:
        """The layout of the fastest way, its seconds, and their standard deviation."""
        waves: dict[str, tuple[int, int]] = {}
        for share in self.plan(pools, most).shares:
            count, nodes = waves.get(share.device_type, (0, 0))
            waves[share.device_type] = count + share.count, max(nodes, share.virtual_nodes)
        layout = tuple(sorted(TypeShare(name, *counts) for name, counts in waves.items()))
        return layout, *self.seconds(layout)

    def fastest(self, devices: int) -> float:
        """The seconds of a step on this number of devices of the type where it is the fastest."""
        return min(self.plan((Pool(name, (devices,)),), devices).step_seconds for name in self.types)

    def differs_from(self, other: StepModel | None) -> bool:
        """Whether it predicts something else, as far as a decision might depend on it."""
        if other is None or (self.virtual_nodes, self.types) != (other.virtual_nodes, other.types):
            return True
        ratios = self._curve / other._curve
        return bool(ratios.max() > DIFFERS * ratios.min())

    @cached_property
    def _curve(self) -> Floats:
        """Seconds of a step on 1, 2, 4, ... devices of each type."""
        devices = 2.0 ** np.arange(math.log2(self.virtual_nodes) + 1).clip(max=self.virtual_nodes)
        waves = np.ceil(self.virtual_nodes / devices)
        curve: Floats = np.outer(self.mean[:-2], waves) + self.mean[-2] + self.mean[-1] * (devices - 1)
        return curve

    @cached_property
    def _workload(self) -> Workload:
        fixed, more = float(self.mean[-2]), float(self.mean[-1])
        profiles = {
            name: Profile(name, (Point(1, float(seconds)),), fixed)
            for name, seconds in zip(self.types, self.mean, strict=False)
        }
        return Workload("learnt", profiles, Communication((), ((2, more), (FAR, (FAR - 1) * more))))


def fit(guess: Guess, virtual_nodes: int, measured: Sequence[TimedSteps]) -> StepModel:
    """What the steps of a job say, where the guess says nothing better."""
    types = tuple(guess.seconds)
    seen = [each for each in measured if all(share.device_type in types for share in each.layout)]
    start = np.array([*guess.seconds.values(), guess.fixed, guess.more])
    if seen:  # the scale is the job's own
        start *= median(each.seconds / float(_row(each.layout, types, start) @ start) for each in seen)
    smallest = start[: len(types)].min()
    doubts = [1.0 if name in guess.doubtful else guess.doubt for name in types]
    deviation = np.array([*(start[: len(types)] * doubts), smallest, smallest / 2])
    mean, covariance = start, np.diag(deviation**2)
    for _ in range(ROUNDS if seen else 0):
        rows = np.array([_row(each.layout, types, mean, deviation) for each in seen])
        mean, covariance = _posterior(start, deviation, rows, seen)
    met = {share.device_type for each in seen for share in each.layout}
    return StepModel(
        virtual_nodes, types, mean, covariance, OWN if seen else guess.source, guess.doubtful - met, tuple(seen)
    )


def _posterior(start: Floats, deviation: Floats, rows: Floats, seen: Sequence[TimedSteps]) -> tuple[Floats, Floats]:
    """Bayes' rule for a line and normal errors; nothing takes less than no time."""
    weights = np.array([1 / (each.error**2 + (MISFIT * each.seconds) ** 2) for each in seen])
    seconds = np.array([each.seconds for each in seen])
    free = np.ones(len(start), bool)
    types, mean = len(start) - 2, np.zeros(len(start))
    while True:
        part = rows[:, free]
        precision = np.diag(deviation[free] ** -2) + (part * weights[:, None]).T @ part
        estimate = np.linalg.solve(precision, start[free] / deviation[free] ** 2 + part.T @ (weights * seconds))
        mean[:] = 0.0
        mean[free] = estimate
        below = [place for place in (types, types + 1) if free[place] and mean[place] < 0]
        if not below:
            break
        free[below] = False
    covariance = np.diag(deviation**2)
    covariance[np.ix_(free, free)] = np.linalg.inv(precision)
    mean[:types] = np.maximum(mean[:types], 1e-3 * start[:types])  # never free of charge
    return mean, covariance


def _row(layout: TypeShares, types: Sequence[str], mean: Floats, deviation: Floats | None = None) -> Floats:
    """What a step on *layout* counts of each part. Of types that are equally slow, the least known one counts."""
    row = np.zeros(len(types) + 2)
    ends = [
        (share.waves * mean[place], deviation[place] if deviation is not None else 0.0, place, share.waves)
        for share in layout
        for place in (types.index(share.device_type),)
    ]
    *_, place, waves = max(ends)
    row[place], row[-2], row[-1] = waves, 1.0, sum(share.devices for share in layout) - 1
    return row


class Learnt:
    """Speeds of live jobs: learnt ones, and of the others what `Profiled` says.

    A job's steps count in seconds on its full demand of the type where that is fastest, as of all jobs whose length its
    owner or its progress has told; so a speed is how much of such a second it does in one.
    """

    def __init__(self) -> None:
        self._models: dict[str, StepModel] = {}
        self._others = Profiled()

    def model(self, job_id: str) -> StepModel | None:
        return self._models.get(job_id)

    def know(self, job_id: str, model: StepModel) -> bool:
        """Use this model from now on; return whether it says something new."""
        is_new = model.differs_from(self._models.get(job_id))
        if is_new:
            self._models[job_id] = model
        return is_new

    def forget(self, job_id: str) -> None:
        self._models.pop(job_id, None)

    def speed(self, job: Job, pools: tuple[Pool, ...]) -> Speed:
        model = self._models.get(job.id)
        if model is None or not all(pool.device_type in model.types for pool in pools):
            return self._others.speed(job, pools)
        plan = model.plan(pools, job.demand)
        return Speed(model.fastest(job.demand) / plan.step_seconds, plan.devices, plan.used)

    def usable(self, job: Job, device_type: str) -> bool:
        return self._others.usable(job, device_type)

    def slowdown(self, job: Job, beside: Sequence[Job], device_type: str) -> float:
        return self._others.slowdown(job, beside, device_type)
