"""A cluster as the page and the HTTP API show it: real, of one job alone, or simulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from virtualflow.core.devices import type_of
from virtualflow.core.job_view import JobView


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What the page's head says."""

    name: str
    policy: str
    backend: str
    started: float
    now: float
    version: str
    troubles: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device, and the job on it."""

    name: str
    type: str
    machine: int
    job: str | None = None
    lost: bool = False
    memory: int | None = None  # bytes, if they are known
    maintenance: tuple[float, float] | None = None  # from when to when it is out, next time


@dataclass(frozen=True, slots=True)
class AllocationView:
    """A stretch of time in which a job had the same devices; *devices* is empty where only their types were kept."""

    job: str
    name: str
    devices: list[str]
    types: dict[str, int]
    begin: float
    end: float | None

    @classmethod
    def of(cls, job: str, name: str, devices: Sequence[str], begin: float, end: float | None) -> AllocationView:
        return cls(job, name, list(devices), dict(Counter(map(type_of, devices))), begin, end)


def state_of(mode: str, cluster: ClusterView, jobs: Iterable[JobView], devices: Iterable[DeviceView]) -> dict[str, Any]:
    """All there is to see at one moment, as JSON."""
    state: dict[str, Any] = {"mode": mode, "cluster": cluster, "jobs": list(jobs), "devices": list(devices)}
    plain: dict[str, Any] = msgspec.to_builtins(state)
    return plain


def history_of(allocations: Iterable[AllocationView]) -> dict[str, Any]:
    """Who had which devices, and when, as JSON."""
    plain: dict[str, Any] = msgspec.to_builtins({"segments": list(allocations)})
    return plain
