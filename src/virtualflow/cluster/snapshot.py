"""The cluster as a policy sees it at one moment. A view, valid until the policy returns."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from virtualflow.cluster.job import Job, ScheduledJob, pools_of
from virtualflow.cluster.throughput.model import Speed, Throughput
from virtualflow.cluster.waiting import Queue


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Running and waiting jobs, devices, and what is known of speeds."""

    now: float  # seconds
    capacity: Mapping[str, int]  # devices by type, lost ones left out; types in the order they were given
    free: Mapping[str, int]  # of those, the ones that no job has
    running: Mapping[str, ScheduledJob]  # jobs with devices, by id, in the order they got them
    queue: Queue  # jobs without, in the policy's order: the first few are cheap to look at
    lacking: int  # devices that running jobs ask for beyond what they have
    throughput: Throughput
    machine_sizes: Mapping[str, tuple[int, ...]]
    jobs_changed: bool  # whether a job came, ended or changed since the policy was last asked
    start_seconds: float = 0.0  # from a job's start to its first step

    @property
    def devices(self) -> int:
        return sum(self.capacity.values())

    @property
    def idle(self) -> int:
        return sum(self.free.values())

    def jobs(self) -> Iterator[ScheduledJob]:
        """All jobs, running ones first."""
        return itertools.chain(self.running.values(), self.queue)

    def within_reach(self, job: Job) -> bool:
        """Whether the cluster has its minimum of devices at the moment, counting those that it can use, busy or free.

        A job that waits for more than the cluster has must not hold up the others.
        """
        if len(self.capacity) == 1:
            return job.min <= self.devices
        return job.min <= sum(self.capacity[name] for name in self.types_for(job))

    def types_for(self, job: Job) -> list[str]:
        """Device types that it can use."""
        return [name for name in self.capacity if len(self.capacity) == 1 or self.throughput.usable(job, name)]

    def fill(self, job: Job, count: int, free: dict[str, int], *, have: int = 0) -> dict[str, int] | None:
        """Take what a job that has *have* devices needs for *count* out of *free*; None if it needs none, or some lack.

        Types are taken in the cluster's order. A job that asks for more than all it can use is content with those, if
        they are not fewer than its minimum.
        """
        usable = self.types_for(job)
        wanted = min(count, sum(self.capacity[name] for name in usable)) - have
        if wanted <= 0 or have + wanted < job.min or sum(free[name] for name in usable) < wanted:
            return None
        taken: dict[str, int] = {}
        for name in usable:
            if part := min(wanted, free[name]):
                taken[name] = part
                free[name] -= part
                wanted -= part
        return taken

    def speed(self, job: Job, counts: Mapping[str, int]) -> Speed:
        """Of a job on *counts* devices by type, on as few machines as possible."""
        return self.throughput.speed(job, pools_of(counts, self.machine_sizes))

    def steps_per_second(self, job: Job, device_type: str, count: int | None = None) -> float:
        """On *count* devices of one type, the demand if not given; 0 where it cannot run."""
        wanted = min(job.demand if count is None else count, sum(self.machine_sizes[device_type]))
        if not wanted or not self.throughput.usable(job, device_type):
            return 0.0
        return self.speed(job, {device_type: wanted}).steps_per_second

    def end_seconds(self, state: ScheduledJob, counts: Mapping[str, int]) -> float:
        """When a job will end on such devices, which it has or gets now. Up to date if the policy `needs_progress`."""
        speed = self.speed(state.job, counts).steps_per_second
        began = self.now if state.began_seconds is None or not state.devices else state.began_seconds
        return max(self.now, began + self.start_seconds) + (state.steps_left / speed if speed else math.inf)

    def fastest(self, job: Job) -> float:
        """Steps a second on its full demand, of the type where that is fastest."""
        return max(self.steps_per_second(job, device_type) for device_type in self.machine_sizes)
