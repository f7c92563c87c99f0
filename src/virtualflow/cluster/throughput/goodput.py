"""Goodput: how fast a job comes to its end when its batch size may be any (Pollux, OSDI '21).

A larger batch uses more devices well, and needs more examples: each step of it is worth less. Goodput is the throughput
times that efficiency. Of an `Application`, both are known. A step takes ::

    compute = base_seconds + example_seconds x examples of a device
    network = near or far, by whether its devices are on one machine, + more for each device beyond two
    step = (compute^overlap + network^overlap)^(1 / overlap), and compute again for each part of the batch before it

and `Application.steps` says in how many steps a training ends at each batch size. That is the efficiency as an average
over the training, where Pollux follows it from epoch to epoch.

A job's steps are those at the batch size of its own. If it `adapts`, it runs at the batch that is best for the devices
it has, and its speed is in steps of its own that are worth as much. Jobs of other workloads run as *others* say.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from virtualflow.cluster.job import Job
from virtualflow.cluster.throughput.model import Speed, Throughput
from virtualflow.core.devices import Pool

CANDIDATES = 50  # batch sizes that are looked at, as Pollux does


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Of one application on one type of device: see above."""

    base_seconds: float
    example_seconds: float
    far_seconds: float
    far_more_seconds: float
    near_seconds: float
    near_more_seconds: float
    overlap: float
    least: int  # examples of a device at a time
    most: int

    def seconds(self, machines: int, devices: int, batch: float, smallest: int) -> float:
        """Of a step of a batch; infinite where the devices have too few examples each."""
        share = batch / devices
        parts = math.ceil(share / self.most - 1e-8)
        if devices == 1 and share > smallest:
            parts = max(2, parts)  # on one device, the noise is estimated from two parts
        examples = math.ceil(share / parts - 1e-8)
        if examples < self.least:
            return math.inf
        compute = self.base_seconds + self.example_seconds * examples
        network, more = 0.0, max(0, devices - 2)
        if machines > 1:
            network = self.far_seconds + self.far_more_seconds * more
        elif devices > 1:
            network = self.near_seconds + self.near_more_seconds * more
        step: float = (compute**self.overlap + network**self.overlap) ** (1 / self.overlap)
        return step + (parts - 1) * compute


@dataclass(frozen=True)
class Application:
    """What is known of a workload whose batch size may change."""

    most_devices: int
    steps: tuple[tuple[int, float], ...]  # batch sizes, and the steps of a whole training with each
    types: Mapping[str, StepSeconds]

    @property
    def smallest(self) -> int:
        return self.steps[0][0]

    @property
    def largest(self) -> int:
        return self.steps[-1][0]

    def steps_at(self, batch: float) -> float:
        """Between two batch sizes that were measured, on the line through the logarithms."""
        place = bisect.bisect_left(self.steps, (batch, 0.0))
        if place == len(self.steps):
            return self.steps[-1][1]
        high, at_high = self.steps[place]
        if high == batch or place == 0:
            return at_high
        low, at_low = self.steps[place - 1]
        return float(at_low * (at_high / at_low) ** (math.log(batch / low) / math.log(high / low)))


class Goodput:
    """Speeds of applications; of other workloads, *others*."""

    def __init__(self, applications: Mapping[str, Application], others: Throughput, *, adapts: bool = False) -> None:
        """*applications* by workload. *adapts*: jobs run at the batch size that is best for their devices."""
        self._applications = applications
        self._others = others
        self._adapts = adapts
        self._known: dict[tuple[str, int, str, int, int], Speed] = {}

    def adapting(self) -> Goodput:
        return Goodput(self._applications, self._others, adapts=True)

    def speed(self, job: Job, pools: tuple[Pool, ...]) -> Speed:
        application = self._applications.get(job.workload)
        if application is None:
            return self._others.speed(job, pools)
        speeds = [self._on(job, application, pool) for pool in pools if pool.device_type in application.types]
        return max(speeds, key=lambda speed: speed.steps_per_second, default=Speed(0.0, 0))

    def usable(self, job: Job, device_type: str) -> bool:
        application = self._applications.get(job.workload)
        return device_type in application.types if application is not None else self._others.usable(job, device_type)

    def slowdown(self, job: Job, beside: Sequence[Job], device_type: str) -> float:
        return self._others.slowdown(job, beside, device_type)

    def knows(self, job: Job) -> bool:
        """Whether the job's batch size may change."""
        return job.workload in self._applications

    def most_devices(self, job: Job) -> int:
        """Of how many devices a job can make use at all, whatever its demand."""
        application = self._applications.get(job.workload)
        if application is None:
            return job.demand
        batch = application.largest if self._adapts else job.batch_size
        least = min(times.least for times in application.types.values())
        return max(1, min(application.most_devices, batch // least))

    def _on(self, job: Job, application: Application, pool: Pool) -> Speed:
        """On devices of one type. Those beyond the most that are of use stay unused."""
        count = min(pool.count, self.most_devices(job))
        machines = pool.machines_for(count)
        key = (job.workload, job.batch_size, pool.device_type, machines, count)
        if key not in self._known:
            times = application.types[pool.device_type]
            while count > 1 and not self._rate(job, application, times, machines, count):
                count -= 1
            rate = self._rate(job, application, times, machines, count)
            self._known[key] = Speed(rate, count if rate else 0, ((pool.device_type, count),))
        return self._known[key]

    def _rate(self, job: Job, application: Application, times: StepSeconds, machines: int, devices: int) -> float:
        """Steps of the job's own batch a second."""
        batches: Sequence[float] = (job.batch_size,)
        if self._adapts:
            least = max(application.smallest, times.least * devices)
            if least > application.largest:
                return 0.0
            ratio = application.largest / least
            batches = [least * ratio ** (place / (CANDIDATES - 1)) for place in range(CANDIDATES)]
        own = application.steps_at(job.batch_size)
        machines = min(machines, devices)
        return max(
            own / (application.steps_at(batch) * times.seconds(machines, devices, batch, application.smallest))
            for batch in batches
        )
