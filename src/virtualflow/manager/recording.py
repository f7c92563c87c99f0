"""What a manager has recorded of its jobs, for a simulation of them."""

from __future__ import annotations

from virtualflow.cluster.recorded import HeldDevices, RecordedCluster, RecordedJob, RecordedSpeed
from virtualflow.core.devices import Pool
from virtualflow.manager.manager import Manager
from virtualflow.manager.record import Record


def recorded(manager: Manager, since: float) -> RecordedCluster:
    """The jobs that waited or ran at some time after *since*, seconds since the epoch."""
    records = [record for record in manager.records.all() if record.ended is None or record.ended >= since]
    held: dict[str, list[HeldDevices]] = {record.id: [] for record in records}
    for job, begin, end, devices in manager.records.allocations_of(held):
        held[job].append(HeldDevices(begin, end, tuple(devices)))
    pools = tuple(Pool(name, sizes) for name, sizes in manager.scheduler.placement.machine_sizes.items())
    return RecordedCluster(
        manager.policy.name,
        manager.policy.options,
        pools,
        manager.clock(),
        tuple(_job(manager, record, tuple(held[record.id])) for record in records),
    )


def _job(manager: Manager, record: Record, held: tuple[HeldDevices, ...]) -> RecordedJob:
    job = manager.reconciler.driver.as_submitted(record)
    return RecordedJob(
        manager.scheduler.held(job) or job,
        record.name,
        record.state,
        record.launches,
        record.resizes,
        record.ended,
        held,
        _speed(manager, record),
    )


def _speed(manager: Manager, record: Record) -> RecordedSpeed | None:
    model = manager.reconciler.speeds.of_record(record, tuple(manager.scheduler.placement.machine_sizes))
    if model is None or not model.measured:
        return None
    return RecordedSpeed(model.virtual_nodes, model.types, tuple(model.mean.tolist()), model.source)
