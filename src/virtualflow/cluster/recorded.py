"""Jobs that a manager has had, as its records show them: how they ended, on which devices, and how fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from virtualflow.cluster.job import Job
from virtualflow.cluster.policies.base import Options
from virtualflow.core.devices import Pool
from virtualflow.core.job_state import JobState
from virtualflow.errors import ManagerError


@dataclass(frozen=True, slots=True)
class HeldDevices:
    """A stretch of time in which a job had the same devices; *end* is None while it has them."""

    begin: float
    end: float | None
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecordedSpeed:
    """The mean of what was learnt of a job: seconds of a virtual node by type, then what every step takes besides, then
    what it takes for each further device."""

    virtual_nodes: int
    types: tuple[str, ...]
    seconds: tuple[float, ...]
    source: str


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """Times are seconds since the epoch; the job's length is what its owner or its progress has told."""

    job: Job
    name: str
    state: JobState
    launches: int
    resizes: int
    ended: float | None
    held: tuple[HeldDevices, ...]
    speed: RecordedSpeed | None = None  # None: nothing was learnt, because it made no steps


@dataclass(frozen=True, slots=True)
class RecordedCluster:
    """The jobs that were there within a time, the devices that the cluster has, and the policy that it has now."""

    policy: str
    options: Options
    pools: tuple[Pool, ...]
    now: float
    jobs: tuple[RecordedJob, ...]


def to_json(recorded: RecordedCluster) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(recorded)
    return plain


def from_json(plain: Mapping[str, Any]) -> RecordedCluster:
    try:
        return msgspec.convert(plain, RecordedCluster)
    except msgspec.ValidationError as error:
        raise ManagerError(f"the manager's records do not fit this version of VirtualFlow: {error}") from error
