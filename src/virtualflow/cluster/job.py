"""A job as it was submitted, and what the scheduler knows of it since."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from virtualflow.core.devices import Pool
from virtualflow.core.memory_needs import MemoryNeeds
from virtualflow.errors import ConfigError

LINEAR = "linear"  # a workload of which only a run time is known: speed grows with the devices, up to the demand


@dataclass(frozen=True, slots=True)
class Job:
    """One training run: what it asks for, and how much there is to do."""

    id: str
    arrival_seconds: float
    demand: int
    steps: float  # of LINEAR jobs: seconds on the full demand
    workload: str = LINEAR
    node_size: int = 1
    virtual_nodes: int = 0  # 0: as many as it can use
    priority: float = 1.0
    min: int = 1  # devices: it waits rather than run on fewer
    memory: MemoryNeeds | None = None  # as far as it states any
    types: frozenset[str] | None = None  # of devices that hold it; None: all. See cluster.holding
    owner: str = ""  # a user: see cluster.users

    def __post_init__(self) -> None:
        if self.demand < 1 or not self.steps > 0 or not self.priority > 0 or self.node_size < 1:
            raise ConfigError(
                f"job {self.id}: its demand ({self.demand}), steps ({self.steps}), priority ({self.priority}) and "
                f"node size ({self.node_size}) must all be above 0"
            )
        if not 1 <= self.min <= self.demand:
            raise ConfigError(
                f"job {self.id}: its minimum must be between 1 and its demand of {self.demand} devices, not {self.min}"
            )
        if not math.isfinite(self.arrival_seconds) or not math.isfinite(self.steps):
            raise ConfigError(f"job {self.id}: its time of arrival and its steps must be finite numbers")
        if self.virtual_nodes == 0:
            object.__setattr__(
                self, "virtual_nodes", max(self.demand, self.memory.useful_devices if self.memory else 0)
            )
        elif self.virtual_nodes < self.demand:
            raise ConfigError(
                f"job {self.id} asks for {self.demand} devices but has {self.virtual_nodes} virtual nodes: "
                "each device needs at least one"
            )

    @property
    def batch_size(self) -> int:
        return self.node_size * self.virtual_nodes


@dataclass(slots=True, eq=False)
class ScheduledJob:
    """A job in the cluster. Policies read it; only the scheduler changes it."""

    job: Job
    id: str = field(init=False)
    devices: tuple[str, ...] = ()  # its placement; empty while it waits
    allocation: int = field(init=False, default=0)  # how many devices it has, of all types; shared ones count too
    counts: Mapping[str, int] = field(default_factory=dict)  # devices by type
    host: str | None = None  # the job whose devices it shares, if it has none of its own
    co_located: tuple[str, ...] = ()  # jobs that share its devices
    started_seconds: float | None = None  # when it first got devices
    began_seconds: float | None = None  # when it last got some after it had none
    changed_seconds: float = field(init=False)  # when its allocation last changed, or when it arrived
    attained_before: float = 0.0  # device-seconds, under an earlier scheduler
    steps_done: float = 0.0  # as last reported: see Policy.needs_progress
    _seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _device_seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def __post_init__(self) -> None:
        self.id, self.changed_seconds = self.job.id, self.job.arrival_seconds

    @property
    def steps_left(self) -> float:
        return max(0.0, self.job.steps - self.steps_done)

    def seconds_on(self, device_type: str, now: float) -> float:
        """How long it has had devices of that type."""
        running = now - self.changed_seconds if self.counts.get(device_type) else 0.0
        return self._seconds.get(device_type, 0.0) + running

    def attained(self, now: float) -> float:
        """Its service so far, in device-seconds over all types."""
        here = sum(self._device_seconds.values()) + self.allocation * (now - self.changed_seconds)
        return self.attained_before + here

    def change(self, now: float, devices: tuple[str, ...], counts: Mapping[str, int], host: str | None) -> None:
        """Book the service under the old allocation, and take on the new one."""
        passed = now - self.changed_seconds
        for device_type, count in self.counts.items():
            self._seconds[device_type] += passed
            self._device_seconds[device_type] += count * passed
        if devices and not self.devices:
            self.began_seconds = now
        self.devices, self.allocation, self.counts, self.host = devices, len(devices), counts, host
        self.changed_seconds = now
        if devices and self.started_seconds is None:
            self.started_seconds = now


def pools_of(counts: Mapping[str, int], machine_sizes: Mapping[str, tuple[int, ...]]) -> tuple[Pool, ...]:
    """*counts* devices by type, on as few machines as the cluster's sizes allow: the best placement that can be had."""
    return tuple(_pool(name, count, machine_sizes[name]) for name, count in counts.items() if count)


@lru_cache(maxsize=4096)
def _pool(device_type: str, count: int, sizes: tuple[int, ...]) -> Pool:
    left, used = count, []
    for size in sizes:
        if left <= 0:
            break
        used.append(min(size, left))
        left -= used[-1]
    return Pool(device_type, tuple(used))
