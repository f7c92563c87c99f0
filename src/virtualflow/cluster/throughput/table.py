"""Speeds from a table of measured ones: Gavel's, with what is left of them when two jobs share devices."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence

from virtualflow.cluster.job import LINEAR, Job
from virtualflow.cluster.throughput.model import Speed
from virtualflow.core.devices import Pool
from virtualflow.errors import ConfigError

WorkloadSize = tuple[str, int]  # a workload, and on how many devices
GAVEL, GAVEL_ROUND_SECONDS = "gavel", 360.0  # whose table this is, and in what rounds it works
APART = "_unconsolidated"  # ends the name of a type whose devices are on several machines


class Table:
    """Steps a second by device type, workload and number of devices.

    Between the numbers that were measured, on the line through the two nearest; mixed types were not measured, so that
    a job on several runs on the best of them. Names of types count without regard to case.
    """

    def __init__(
        self,
        alone: Mapping[str, Mapping[WorkloadSize, float]],
        shared: Mapping[str, Mapping[tuple[WorkloadSize, WorkloadSize], float]],
        whole_steps_seconds: float | None = None,
    ) -> None:
        """*shared* has the speed of the first workload of a pair. With *whole_steps_seconds*, rounds of that length
        have whole steps: Gavel's rounding."""
        self.alone, self.shared = alone, shared
        self._whole = whole_steps_seconds
        self._counts: dict[tuple[str, str], list[int]] = {}
        for device_type, speeds in alone.items():
            for workload, count in sorted(speeds):
                self._counts.setdefault((device_type, workload), []).append(count)
        self._known: dict[tuple[str, int, tuple[Pool, ...]], Speed] = {}
        self._usable: dict[tuple[str, int, str], bool] = {}

    def speed(self, job: Job, pools: tuple[Pool, ...]) -> Speed:
        if job.workload == LINEAR:
            used = min(job.demand, sum(pool.count for pool in pools))
            return Speed(used / job.demand, used)
        key = (job.workload, job.demand, pools)
        known = self._known.get(key)
        if known is None:
            speeds = [self._on(job, pool) for pool in pools]
            known = self._known[key] = max(speeds, key=lambda speed: speed.steps_per_second)
        return known

    def usable(self, job: Job, device_type: str) -> bool:
        """Where its demand was measured to run: some workloads fit on one device of a type and not on four."""
        if job.workload == LINEAR:
            return True
        key = (job.workload, job.demand, device_type)
        known = self._usable.get(key)
        if known is None:
            known = self._usable[key] = self._at(device_type.lower(), job.workload, job.demand) > 0
        return known

    def slowdown(self, job: Job, beside: Sequence[Job], device_type: str) -> float:
        """What is left beside the worst of *beside*, as measured on one device each; 0 where they do not fit together.

        With a third one on the same device, what is left is multiplied: nothing was measured.
        """
        left = 1.0
        for other in beside:
            pair = ((job.workload, 1), (other.workload, 1))
            together = self.shared.get(device_type.lower(), {}).get(pair)
            left *= 1 / 2 if together is None else together / self.alone[device_type.lower()][pair[0]]
        return left

    def _on(self, job: Job, pool: Pool) -> Speed:
        used = min(job.demand, pool.count)
        name = pool.device_type.lower()
        if pool.machines_for(used) > 1 and (name + APART, job.workload) in self._counts:
            name += APART
        rate = self._at(name, job.workload, used)
        if self._whole is not None:
            rate = int(rate * self._whole) / self._whole
        return Speed(rate, used if rate else 0, ((pool.device_type, used),))

    def _at(self, name: str, workload: str, devices: int) -> float:
        if name not in self.alone:
            known = ", ".join(sorted(name for name in self.alone if not name.endswith(APART)))
            raise ConfigError(f"the table of throughputs has no device type {name}. It has {known}.")
        counts, speeds = self._counts.get((name, workload)), self.alone[name]
        if counts is None:
            raise ConfigError(f"the table of throughputs has no workload {workload!r} on {name}")
        place = bisect.bisect_left(counts, devices)
        if place < len(counts) and counts[place] == devices:
            return speeds[workload, devices]
        if place == len(counts):
            return speeds[workload, counts[-1]]  # more than were ever measured are of no use
        high = counts[place]
        low, at_low = (counts[place - 1], speeds[workload, counts[place - 1]]) if place else (0, 0.0)
        return at_low + (speeds[workload, high] - at_low) * (devices - low) / (high - low)
