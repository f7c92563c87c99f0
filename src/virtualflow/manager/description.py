"""A submitted job as the scheduler, its coordinator and its folder need it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from virtualflow.cluster.job import Job
from virtualflow.cluster.users import Users
from virtualflow.core.devices import Pool, type_of
from virtualflow.job.folder import JobFolder, JobSpec, write_json
from virtualflow.job.status import JobStatus
from virtualflow.manager import environment
from virtualflow.manager.estimates import expected_seconds
from virtualflow.manager.record import Record
from virtualflow.manager.submission import Submission
from virtualflow.program.manifest import write_modules

SUBMITTED = "submitted.json"  # in a job's folder: the job as it was handed in to a manager


@dataclass(frozen=True, slots=True)
class Cluster:
    """The devices that a manager shares out, and how its jobs run on them."""

    pools: tuple[Pool, ...]
    emulated: Mapping[str, Mapping[str, Any]]  # by device: those that stand for others
    backend: str = "local"
    patience_seconds: float = 30.0
    device_type: str = "auto"  # "cpu": cores, even if the devices have other names
    machines: Mapping[str, str] = field(default_factory=dict)  # by device: its machine's id, if there are several
    environment: Mapping[str, str] = field(default_factory=dict)  # what coordinators need to find them
    memory: Mapping[str, int] = field(default_factory=dict)  # bytes of a device by type, as far as they are known
    users: Users | None = None  # who share the devices, and how; None: nobody asks who a job's owner is


def for_scheduler(record: Record, devices: int) -> Job:
    """In a cluster of this size."""
    demand = min(record.max_devices, devices)
    length = expected_seconds(record)
    memory = record.memory
    return Job(
        record.id,
        record.submitted,
        demand,
        length,
        priority=record.terms.priority,
        min=min(record.terms.min, demand),
        owner=record.terms.owner,
        memory=memory,
        virtual_nodes=(record.terms.virtual_nodes or 0) if memory is not None else 0,
    )


def for_coordinator(
    record: Record, devices: tuple[str, ...], cluster: Cluster, names: Iterable[str], machines: Mapping[str, str]
) -> JobSpec:
    """To be run on *devices* at first. *names* are all those of the cluster, *machines* where they are."""
    own = record.description.emulated
    emulated = {name: dict(facts) for name, facts in cluster.emulated.items()}
    emulated |= {name: own[type_of(name)] for name in names if type_of(name) in own}
    limits = [cluster.memory[name] for name in map(type_of, devices) if name in cluster.memory]
    return JobSpec(
        record.id,
        replace(
            record.description,
            device_type=cluster.device_type,
            emulated=emulated,
            device_bytes=min(limits, default=None),
            memory=record.memory,
        ),
        devices,
        patience_seconds=cluster.patience_seconds,
        backend=cluster.backend,
        pinned=dict(machines),
        rebalance=len(cluster.pools) > 1,
        managed=True,
    )


def write_folder(folder: JobFolder, record: Record, spec: JobSpec, submission: Submission) -> None:
    """Fill the folder of a job that waits, with all that another manager needs to know of it."""
    environment.keep(folder.path, submission.variables)
    folder.change(spec)
    write_json(folder.path / SUBMITTED, asdict(record))
    write_modules(folder.snapshot, dict(submission.modules))
    write_state(folder, record)


def write_state(folder: JobFolder, record: Record) -> None:
    """For ``vf status``, while no coordinator writes it; and for a manager that has lost its records."""
    reason = (record.failure or record.trouble or "").splitlines()
    with contextlib.suppress(OSError):  # a full disk
        counts = folder.read_counts()
        folder.write_state(
            JobStatus(
                record.state,
                virtual_nodes=record.terms.virtual_nodes,
                reason=reason[-1] if reason else "",
                over=record.is_over,
                **counts,
            )
        )
